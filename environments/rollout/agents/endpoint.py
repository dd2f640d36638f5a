"""The model endpoint of recorded agents: a port on loopback and a secret for each rollout."""

import asyncio
import hmac
import math
import secrets
import socket
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from contextvars import Context
from time import monotonic
from typing import Any, Protocol, cast

import orjson
from aiohttp import web
from aiohttp.web_request import BaseRequest

from environments.rewards.reward_context import AgentEndpoint
from environments.rollout.agents.dialects import (
    CHAT,
    MESSAGES,
    NOT_RETRIED,
    RESPONSES,
    AgentRequest,
    Dialect,
    Refused,
    Reply,
)
from tools.plain_text import REDACTED

_MAX_CONNECTIONS = 16
_WAIT_S = 0.2
_IDLE_S = 1.0
"""Idle time before a connection may be closed for another: its client may be about to send."""
_MAX_BODY_BYTES = 32 << 20
_BODY_S = 30.0
_LARGE_BYTES = 1 << 20
"""Parsing a larger body takes over 10 ms."""
_PING_S = 5.0
"""Wait before a stream begins without its completion: until then an error has its own status."""
_DIALECTS: Mapping[str, Dialect] = {"chat/completions": CHAT, "responses": RESPONSES, "messages": MESSAGES}
_COUNTS = {
    "responses/input_tokens": {"object": "response.input_tokens"},
    "messages/count_tokens": dict[str, str](),
}


class Connection:
    def __init__(self, request: BaseRequest) -> None:
        self._request = request
        self.is_delivered = False

    @property
    def is_open(self) -> bool:
        transport = self._request.transport
        return transport is not None and not transport.is_closing()

    @property
    def is_retry(self) -> bool:
        return self._request.headers.get("x-stainless-retry-count", "0") != "0"


class Recorded(Protocol):
    """One rollout, as the endpoint sees it."""

    models: Sequence[str]
    secrets: Sequence[bytes]
    """Texts that must reach neither the model nor the record."""

    def note_refusal(self, problem: str) -> None: ...

    async def ask(self, request: AgentRequest, connection: Connection) -> Reply: ...

    async def count_tokens(self, request: AgentRequest) -> int: ...


def redact(text: bytes, hidden: Sequence[bytes]) -> bytes:
    for secret in hidden:
        if secret in text:
            text = text.replace(secret, REDACTED.encode())
    return text


class EndpointServer:
    """Opens a port on loopback for each rollout, so that connections cannot be confused."""

    def __init__(self) -> None:
        self._parser = ThreadPoolExecutor(1, thread_name_prefix="endpoint")

    @asynccontextmanager
    async def rollout(
        self, recorded: Callable[[str], Recorded], model: str, sock: socket.socket | None = None
    ) -> AsyncGenerator[tuple[Recorded, AgentEndpoint]]:
        """Serve one rollout.

        `recorded` creates the rollout's side, given its secret. `sock` is a listening socket, if the agent
        reaches no other address; it is closed afterwards.
        """
        key = f"sk-{secrets.token_hex(20)}"
        answers = recorded(key)
        port = _Port(answers, key, self._parser)
        with sock or socket.create_server(("127.0.0.1", 0), backlog=1024) as listening:
            # With an empty context: requests are not part of a hook.
            accepting = asyncio.get_running_loop().create_task(port.accept(listening), context=Context())
            try:
                base_url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
                yield answers, AgentEndpoint(base_url=base_url, api_key=key, model=model)
            finally:
                port.is_open = False
                # A cancellation could lose a connection that arrives in the same iteration of the loop.
                try:
                    listening.shutdown(socket.SHUT_RDWR)
                except OSError:  # on macOS only connections can be shut down
                    accepting.cancel()
                port.close()
                await asyncio.wait({accepting})
                port.close()
                if not accepting.cancelled():
                    accepting.result()  # raises its error


class _Connection(web.RequestHandler):
    def __init__(self, port: "_Port", server: web.Server) -> None:
        super().__init__(
            server, loop=asyncio.get_running_loop(), lingering_time=5.0, access_log=cast("Any", None),
            read_bufsize=64 << 10, auto_decompress=False,
        )  # fmt: skip
        self._port = port
        self.idle_since = monotonic()
        """When it was opened or its last request was answered; infinite during a request."""

    @property
    def is_idle(self) -> bool:
        is_old = monotonic() - self.idle_since > _IDLE_S
        return is_old and self.transport is not None and self.transport.get_write_buffer_size() == 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        with suppress(AttributeError):  # another event loop may lack it
            transport.max_size = 16 << 10  # pyright: ignore[reportAttributeAccessIssue]  # asyncio's
        self._port.connections.add(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._port.connections.discard(self)
        self._port.has_changed.set()

    def close_now(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def handle_error(
        self, request: BaseRequest, status: int = 500, exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:  # fmt: skip
        """Count invalid HTTP as a refused request; `aiohttp` would log a traceback for each."""
        if status >= 500:
            return super().handle_error(request, status, exc, message)
        self._port.rollout.note_refusal(f"{status}: no HTTP")
        response = web.Response(status=status, text="no HTTP")
        response.force_close()
        return response


class _Port:
    def __init__(self, rollout: Recorded, key: str, parser: ThreadPoolExecutor) -> None:
        self.rollout = rollout
        self.connections: set[_Connection] = set()
        self.has_changed = asyncio.Event()
        self.is_open = True
        self._is_full = False
        self._key, self._parser = key.encode(), parser
        self._server = web.Server(self._handle)
        self._reading = asyncio.Lock()

    async def accept(self, listening: socket.socket) -> None:
        """Accept connections up to a limit; the rest waits in the kernel."""
        loop = asyncio.get_running_loop()
        listening.setblocking(False)
        while self.is_open:
            try:
                accepted, _ = await loop.sock_accept(listening)
            except OSError:
                if self.is_open:  # no file descriptor left
                    await asyncio.sleep(_WAIT_S)
                continue
            try:
                await self._make_room()
                await loop.connect_accepted_socket(lambda: _Connection(self, self._server), accepted)
            except BaseException as error:
                accepted.close()
                if not isinstance(error, OSError):
                    raise

    async def _make_room(self) -> None:
        """Close the longest idle connection, if necessary, and wait for room for one more."""
        while len(self.connections) >= _MAX_CONNECTIONS:
            self._is_full = True
            self.has_changed.clear()
            idle = [each for each in self.connections if each.is_idle]
            if idle:
                min(idle, key=lambda each: each.idle_since).close_now()
            with suppress(TimeoutError):
                async with asyncio.timeout(_WAIT_S):  # `wait_for` may swallow a cancellation
                    await self.has_changed.wait()
        self._is_full = False

    def close(self) -> None:
        for connection in list(self.connections):
            connection.close_now()

    async def _handle(self, request: BaseRequest) -> web.StreamResponse:
        connection = cast("_Connection", request.protocol)
        connection.idle_since = math.inf
        try:
            response = await self._answer(request)
            with suppress(ConnectionError):  # the agent is gone
                await self._begin(response, request)
                await response.write_eof()
        finally:
            connection.idle_since = monotonic()
        return response

    async def _begin(self, response: web.StreamResponse, request: BaseRequest) -> None:
        if self._is_full and not response.prepared:
            response.force_close()
        await response.prepare(request)

    async def _answer(self, request: BaseRequest) -> web.StreamResponse:
        path = request.path.lstrip("/").removeprefix("v1/")
        dialect = next((each for name, each in _DIALECTS.items() if path.startswith(name)), CHAT)
        try:
            bearer = request.headers.get("authorization", "").partition(" ")[2]
            keys = [
                each.strip().encode("utf-8", "replace")
                for each in (bearer, request.headers.get("x-api-key", ""))
            ]
            if not any(hmac.compare_digest(each, self._key) for each in keys):
                problem = "wrong API key: each rollout has its own, in the same place as its base URL"
                raise Refused(problem, status=401, kind="authentication_error", code="invalid_api_key")
            if request.method == "GET" and path.split("/")[0] == "models":
                return _json(_models(self.rollout, path))
            if request.method != "POST" or path not in (*_DIALECTS, *_COUNTS):
                possible = ", ".join(f"POST /v1/{each}" for each in (*_DIALECTS, *_COUNTS))
                possible += ", GET /v1/models"
                raise Refused(f"{request.method} {request.path:.200}: possible is {possible}", status=404)
            async with self._reading:
                asked = await self._read(request, dialect)
            if path in _COUNTS:
                return _json({**_COUNTS[path], "input_tokens": await self.rollout.count_tokens(asked)})
            return await self._complete(dialect, asked, request)
        except Refused as refused:
            self.rollout.note_refusal(f"{refused.status}: {refused}")
            return _json(dialect.error(refused), refused.status)
        except ConnectionError:  # the agent is gone
            return web.Response()

    async def _read(self, request: BaseRequest, dialect: Dialect) -> AgentRequest:
        too_large = Refused(f"the body is larger than {_MAX_BODY_BYTES >> 20} MiB", status=413)
        if (request.content_length or 0) > _MAX_BODY_BYTES:
            raise too_large
        read = bytearray()
        try:
            async with asyncio.timeout(_BODY_S):
                while chunk := await request.content.readany():
                    read += chunk
                    if len(read) > _MAX_BODY_BYTES:
                        raise too_large
        except TimeoutError:
            raise Refused(f"the body did not end within {_BODY_S:g} s") from None
        except web.RequestPayloadError as error:
            raise Refused(f"the body cannot be read: {error}") from None

        def parse() -> AgentRequest:
            return dialect.read(redact(bytes(read), self.rollout.secrets))

        if len(read) < _LARGE_BYTES:
            return parse()
        return await asyncio.get_running_loop().run_in_executor(self._parser, parse)

    async def _complete(
        self, dialect: Dialect, asked: AgentRequest, request: BaseRequest
    ) -> web.StreamResponse:
        connection = Connection(request)
        if not asked.stream:
            response = _json(dialect.reply(await self.rollout.ask(asked, connection), asked))
            await self._begin(response, request)
        else:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            asking = asyncio.ensure_future(self.rollout.ask(asked, connection))
            while not (await asyncio.wait({asking}, timeout=_PING_S))[0] and connection.is_open:
                await self._begin(response, request)
                with suppress(ConnectionError):
                    await response.write(dialect.ping)
            try:
                events = dialect.events(await asking, asked)
            except Refused as refused:
                if not response.prepared:
                    raise
                self.rollout.note_refusal(f"{refused.status}: {refused}")
                await response.write(dialect.error_event(refused))
                return response
            await self._begin(response, request)
            await response.write(events)
        await response.write_eof()
        connection.is_delivered = True
        return response


def _models(rollout: Recorded, path: str) -> dict[str, Any]:
    kind = {"object": "model", "type": "model", "created": 0, "owned_by": "turnwise"}
    listed = [{"id": name, "display_name": name, **kind} for name in rollout.models]
    _, is_one, name = path.partition("/")
    if not is_one:
        return {"object": "list", "data": listed, "has_more": False}
    found = next((each for each in listed if each["id"] == name), None)
    if found is None:
        raise Refused(f"no model {name!r:.100}; choose from {', '.join(rollout.models)}", status=404)
    return found


def _json(fields: dict[str, Any], status: int = 200) -> web.Response:
    headers = {} if status < 400 or status >= 500 else NOT_RETRIED
    return web.Response(
        body=orjson.dumps(fields), status=status, content_type="application/json", headers=headers
    )
