"""A session with an MCP server: one task opens it, serves queued calls, and closes it."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, cast

import mcp_types as types
from mcp import ClientSession
from mcp.shared.exceptions import MCPError

from tools.errors import ToolError, ToolServerLost
from tools.mcp.mcp_toolset import MCPToolset
from tools.mcp.mcp_transport import StdioServer, http_streams
from tools.waiting import to_the_end

# Errors arrive as exceptions; users can enable logging.
logging.getLogger("mcp").addHandler(logging.NullHandler())

_CLOSE_S = 5.0
_MAX_TOOLS = 512


@dataclass(slots=True)
class _Request:
    request: Any
    result_type: type[Any]
    answer: "asyncio.Future[Any]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class MCPSession:
    def __init__(self, server: MCPToolset, folder: str) -> None:
        self.server = server
        self.is_lost = False
        self._requests: asyncio.Queue[_Request | None] = asyncio.Queue()
        self._unanswered: set[asyncio.Future[Any]] = set()
        self._process = None if server.command is None else StdioServer(server, folder, self._give_up_answer)

    async def list_tools(self) -> list[types.Tool]:
        """List all tools; ToolServerLost if the server ended or its answer is unreadable."""
        tools: list[types.Tool] = []
        cursor = None
        while True:
            request = types.ListToolsRequest(params=types.PaginatedRequestParams(cursor=cursor))
            try:
                page = await self._ask(request, types.ListToolsResult)
            except ToolError as error:
                raise ToolServerLost(f"MCP server {self.server.name!r} lists no tools: {error}") from error
            tools += page.tools
            cursor = page.next_cursor
            if len(tools) > _MAX_TOOLS:
                raise ToolServerLost(f"MCP server {self.server.name!r} lists more than {_MAX_TOOLS} tools")
            if cursor is None:
                return tools

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """Return a tool's answer as text.

        Raises:
            ToolError: if the tool or the server refuses the call.
            ToolServerLost: if the server ended.
        """
        params = types.CallToolRequestParams(name=tool, arguments=dict(arguments))
        result = await self._ask(types.CallToolRequest(params=params), types.CallToolResult)
        text = "\n".join(map(_show_block, result.content))
        if not result.content and result.structured_content is not None:
            text = json.dumps(result.structured_content, ensure_ascii=False)
        if result.is_error:
            raise ToolError(text or "the tool failed, and says nothing")
        return text

    async def own(self, opened: "asyncio.Future[None]") -> None:
        try:
            async with AsyncExitStack() as closing:
                streams = http_streams(self.server) if self._process is None else self._process.streams()
                read, write = await closing.enter_async_context(streams)
                client = await closing.enter_async_context(ClientSession(read, write))
                await client.initialize()
                opened.set_result(None)
                async with asyncio.TaskGroup() as answering:
                    while (request := await self._requests.get()) is not None:
                        task = answering.create_task(self._answer(client, request))
                        request.answer.add_done_callback(lambda _, task=task: task.cancel())
                    for answer in list(self._unanswered):
                        answer.cancel()
        except Exception as error:
            self._lose(_reason(error))
            raise
        finally:
            self._lose("it was closed")

    def close(self) -> None:
        self._requests.put_nowait(None)

    def failure(self, why: object) -> ToolServerLost:
        last_words = "" if self._process is None else self._process.last_words
        return ToolServerLost(f"MCP server {self.server.name!r}: {why}{last_words}")

    async def _ask(self, request: Any, result_type: type[Any]) -> Any:
        if self.is_lost:
            raise self.failure("its session has ended")
        asked = _Request(request, result_type)
        self._unanswered.add(asked.answer)
        asked.answer.add_done_callback(self._unanswered.discard)
        self._requests.put_nowait(asked)
        return await asked.answer

    async def _answer(self, client: ClientSession, asked: _Request) -> None:
        try:
            given: Any = await client.send_request(asked.request, asked.result_type)
        except MCPError as error:
            if error.code == types.CONNECTION_CLOSED:
                self._lose("it ended in the middle")
            else:
                _fail(asked.answer, ToolError(f"the tool's server refuses: {error.message}"))
        except (ValueError, RuntimeError, RecursionError):
            _fail(asked.answer, ToolError("the tool's server gave an answer that cannot be read"))
        else:
            if not asked.answer.done():
                asked.answer.set_result(given)

    def _lose(self, why: str) -> None:
        self.is_lost = True
        for answer in list(self._unanswered):
            _fail(answer, self.failure(why))

    def _give_up_answer(self, problem: str) -> None:
        for answer in list(self._unanswered):
            _fail(answer, ToolError(f"the answer is {problem}: ask for less"))


@asynccontextmanager
async def mcp_session(server: MCPToolset, folder: str) -> AsyncGenerator[MCPSession]:
    """Run a session in a separate task, so that it also closes if the caller is cancelled.

    Raises:
        ToolServerLost: if it cannot be opened in time.
    """
    session = MCPSession(server, folder)
    opened = asyncio.get_running_loop().create_future()
    # Without a rollout's context: a shared session outlives its first user.
    owner = asyncio.get_running_loop().create_task(session.own(opened), context=Context())
    try:
        await asyncio.wait(
            {owner, opened}, timeout=server.open_timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        if not opened.done():
            why = (
                _reason(None if owner.cancelled() else owner.exception())
                if owner.done()
                else f"no session was opened within {server.open_timeout_s:g} s"
            )
            raise session.failure(why)
        yield session
    finally:
        session.close()
        if not opened.done():
            opened.cancel()
            owner.cancel()
        await to_the_end(_wait_for_end(owner))


async def _wait_for_end(owner: "asyncio.Task[None]") -> None:
    await asyncio.wait({owner}, timeout=_CLOSE_S)
    owner.cancel()
    await asyncio.wait({owner}, timeout=_CLOSE_S)
    if owner.done() and not owner.cancelled():
        owner.exception()


def _reason(error: BaseException | None) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    if error is None:
        return "no session was opened"
    return str(error) if isinstance(error, ToolServerLost) else f"{type(error).__name__}: {error}"[:500]


def _fail(answer: "asyncio.Future[Any]", error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)


def _show_block(block: Any) -> str:
    if isinstance(block, types.TextContent):
        return block.text
    if isinstance(block, types.EmbeddedResource) and isinstance(block.resource, types.TextResourceContents):
        return block.resource.text
    kind = getattr(block, "mime_type", None) or block.type
    return f"[{kind} is not shown: only text can be]"
