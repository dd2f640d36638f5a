"""Transports to MCP servers with bounded messages: a process that ends with its session, or HTTP."""

import asyncio
import json
import os
import shutil
import tempfile
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import INTERNAL_ERROR, jsonrpc_message_adapter

from tools.errors import ToolServerLost
from tools.json_input import JsonError, check_weight, read_exact_json, read_json
from tools.mcp.mcp_toolset import ROLLOUT, MCPToolset
from tools.sandbox.host.ownership import end, guard_command, home_variables
from tools.waiting import to_the_end

MAX_ANSWER_BYTES = 8 << 20
_MOST = 150_000
"""Weight limit of a message: the session takes 0.2 s for 10,000 parts or tools."""
_CHUNK_BYTES = 1 << 16
_EVENT_ENDS = (b"\n\n", b"\r\r", b"\r\n\r\n")
_EXIT_S = 1.0
"""Grace period after stdin closes, before the process and its children are killed."""
_KEPT_STDERR_BYTES = 4096

Streams = tuple[Any, Any]


class StdioServer:
    """A server's process, with the end of its stderr for errors."""

    def __init__(self, server: MCPToolset, folder: str, on_refused: Callable[[str], None]) -> None:
        self._server, self._folder, self._on_refused = server, folder, on_refused
        self._stderr = deque[bytes](maxlen=16)

    @property
    def last_words(self) -> str:
        text = b"".join(self._stderr)[-_KEPT_STDERR_BYTES:].decode("utf-8", "replace").strip()
        return f": {' '.join(text.split())[-300:]}" if text else ""

    @asynccontextmanager
    async def streams(self) -> AsyncGenerator[Streams]:
        """Run the process; on exit kill it with its children.

        Raises:
            ToolServerLost: if it cannot be started.
        """
        process = await self._start()
        to_session, from_server = anyio.create_memory_object_stream[Any](0)
        to_server, from_session = anyio.create_memory_object_stream[Any](0)
        talk = [
            asyncio.create_task(self._read(process, to_session)),
            asyncio.create_task(self._write(process, from_session, to_session)),
        ]
        stderr = asyncio.create_task(self._keep_stderr(process))
        try:
            yield from_server, to_server
        finally:
            await to_the_end(self._end(process, talk, stderr))
            for stream in (to_session, from_server, to_server, from_session):
                stream.close()

    async def _start(self) -> asyncio.subprocess.Process:
        server, own = self._server, tempfile.mkdtemp(prefix=".server-", dir=self._folder)
        named = {name: value.replace(ROLLOUT, self._folder) for name, value in server.env.items()}
        env = get_default_environment() | home_variables(own) | named
        program = shutil.which(str(server.command), path=env.get("PATH"))
        if program is None:
            raise ToolServerLost(f"it cannot be started: no program {server.command}")
        files = os.path
        argv = [files.abspath(each) if files.isfile(each) else each for each in (program, *server.args)]
        try:
            return await asyncio.create_subprocess_exec(
                *guard_command(argv, self._folder),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=env,
                cwd=f"{own}/home",
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise ToolServerLost(f"it cannot be started: {error}") from error

    async def _read(self, process: asyncio.subprocess.Process, to_session: Any) -> None:
        assert process.stdout is not None
        async with to_session:
            async for line in self._lines(process.stdout):
                try:
                    check_weight(line, _MOST)
                    message = _message(line)
                except ValueError as error:
                    if isinstance(error, JsonError) and error.line is None:
                        self._on_refused(str(error))
                else:
                    await to_session.send(SessionMessage(message))

    async def _lines(self, stdout: asyncio.StreamReader) -> AsyncIterator[bytes]:
        line, is_too_long = bytearray(), False
        while chunk := await stdout.read(_CHUNK_BYTES):
            *ended, rest = chunk.split(b"\n")
            for part in ended:
                if not is_too_long and len(line) + len(part) <= MAX_ANSWER_BYTES:
                    yield bytes(line + part)
                line, is_too_long = bytearray(), False
            if not is_too_long:
                line += rest
            if len(line) > MAX_ANSWER_BYTES:
                line, is_too_long = bytearray(), True
                self._on_refused(f"longer than {MAX_ANSWER_BYTES >> 20} MB")

    async def _write(self, process: asyncio.subprocess.Process, from_session: Any, to_session: Any) -> None:
        assert process.stdin is not None
        try:
            async with from_session:
                async for each in from_session:
                    text: str = each.message.model_dump_json(by_alias=True, exclude_unset=True)
                    process.stdin.write(text.encode("utf-8", "replace") + b"\n")
                    await process.stdin.drain()
        except (OSError, RuntimeError):
            to_session.close()  # ends the session instead of letting it wait for ever

    async def _keep_stderr(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while chunk := await process.stderr.read(_KEPT_STDERR_BYTES):
            self._stderr.append(chunk)

    async def _end(
        self,
        process: asyncio.subprocess.Process,
        talk: list["asyncio.Task[None]"],
        stderr: "asyncio.Task[None]",
    ) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        for task in talk:
            task.cancel()
        await asyncio.wait(talk)
        # `wait` also waits for the ends of the streams, so a full one must be read.
        exited = asyncio.create_task(process.wait())
        left = (exited, stderr, asyncio.create_task(_drain(process.stdout)))
        await asyncio.wait({exited}, timeout=_EXIT_S)
        await end(process)
        for task in left:
            task.cancel()
        await asyncio.wait(left)


def _message(line: bytes) -> Any:
    try:
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        text = json.dumps(read_exact_json(line.decode("utf-8", "replace"), lenient=True), ensure_ascii=False)
        return jsonrpc_message_adapter.validate_json(text.encode("utf-8", "replace"), by_name=False)


async def _drain(stream: asyncio.StreamReader) -> None:
    while await stream.read(_CHUNK_BYTES):
        pass


@asynccontextmanager
async def http_streams(server: MCPToolset) -> AsyncGenerator[Streams]:
    """Connect over HTTP, ignoring proxies and `.netrc` of this process."""
    timeout = httpx2.Timeout(server.open_timeout_s, read=None)
    async with (
        httpx2.AsyncClient(
            transport=_PlainTransport(), headers=dict(server.headers), timeout=timeout, trust_env=False
        ) as client,
        streamable_http_client(
            str(server.url), http_client=client, max_sse_event_size=MAX_ANSWER_BYTES
        ) as streams,
    ):
        yield streams


class _PlainTransport(httpx2.AsyncHTTPTransport):
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.headers["Accept-Encoding"] = "identity"
        response = await super().handle_async_request(request)
        encoding = response.headers.pop("content-encoding", "identity")
        response.stream = _MessageStream(
            response.stream,
            problem=None if encoding == "identity" else f"packed ({encoding!r:.40}), and none was asked for",
            are_events="text/event-stream" in response.headers.get("content-type", ""),
            asked=request.content,
        )
        return response


class _MessageStream(httpx2.AsyncByteStream):
    def __init__(self, stream: Any, *, problem: str | None, are_events: bool, asked: bytes) -> None:
        self._stream, self._problem, self._are_events, self._asked = stream, problem, are_events, asked

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            if self._problem is not None:
                raise JsonError(self._problem)
            async for message in self._messages():
                check_weight(message, _MOST)
                yield message
        except JsonError as error:
            # An exception would end the session.
            yield self._refusal(f"the answer is {error}: ask for less")

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def _messages(self) -> AsyncIterator[bytes]:
        held = bytearray()
        async for chunk in self._stream:
            searched = max(0, len(held) - 3)
            held += chunk
            if self._are_events:
                found = ((held.rfind(mark, searched), len(mark)) for mark in _EVENT_ENDS)
                if end := max((at + length for at, length in found if at >= 0), default=0):
                    yield bytes(held[:end])
                    del held[:end]
            if len(held) > MAX_ANSWER_BYTES:
                raise JsonError(f"longer than {MAX_ANSWER_BYTES >> 20} MB")
        yield bytes(held)

    def _refusal(self, problem: str) -> bytes:
        asked: Any = read_json(self._asked) if self._asked else {}
        error = {"code": INTERNAL_ERROR, "message": problem}
        text = json.dumps({"jsonrpc": "2.0", "id": asked.get("id"), "error": error})
        return (f"data: {text}\n\n" if self._are_events else text).encode()
