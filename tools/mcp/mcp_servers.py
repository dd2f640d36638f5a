"""An environment's MCP servers: tools are listed once, sessions opened per rollout or run."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from tools.calls import ToolSpec
from tools.errors import ConfigError, ToolServerLost
from tools.extras import needs_extra
from tools.mcp.mcp_toolset import MCPToolset
from tools.registry import TOOL_NAME, Tool, Toolset
from tools.sandbox.host.ownership import own_folder
from tools.signature import Signature, json_arguments

if TYPE_CHECKING:
    from mcp_types import Tool as ListedTool

    from tools.mcp.mcp_session import MCPSession

_MAX_SPEC_CHARS = 100_000
"""Limit of a tool's schema and description, which every prompt contains."""

Call = Callable[[str, Mapping[str, Any]], Awaitable[str]]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MCPTool(Tool):
    server: str


class _OpenSignature(Signature):
    __slots__ = ()

    def parse(self, text: str) -> dict[str, Any]:
        return {"arguments": json_arguments(text)}


class MCPServers:
    """Lists tools while the environment is open; `for_rollout` connects them for each rollout."""

    def __init__(self, servers: Sequence[MCPToolset]) -> None:
        self._servers = {server.name: server for server in servers}
        self._shared: dict[str, _SharedSession] = {}
        self._is_open = False

    def __bool__(self) -> bool:
        return bool(self._servers)

    @classmethod
    def from_tools(cls, tools: Sequence[Any], enabled: Sequence[str] | None = None) -> "MCPServers":
        servers = [entry for entry in tools if isinstance(entry, MCPToolset)]
        return cls([server for server in servers if enabled is None or server.name in enabled])

    @asynccontextmanager
    async def connect(self, notify: Callable[[str], None]) -> AsyncGenerator[Mapping[str, Toolset]]:
        """Yield toolsets by server name; shared sessions stay open.

        Raises:
            ConfigError: if a server cannot be reached, or a tool is unsuitable.
        """
        toolsets: dict[str, Toolset] = {}
        async with AsyncExitStack() as sessions:
            for server in self._servers.values():
                toolsets[server.name] = await self._list_tools(server, sessions)
                names = ", ".join(tool.name for tool in toolsets[server.name].tools)
                notify(f"MCP server {server.name}, a session per {server.per}: {names}")
            self._is_open = True
            try:
                yield toolsets
            finally:
                self._is_open = False

    @asynccontextmanager
    async def for_rollout(self, toolset: Toolset) -> AsyncGenerator[Toolset]:
        """Yield the toolset with callable MCP tools.

        Raises:
            ToolServerLost: if a session cannot be opened.
            ConfigError: if the environment is not open.
        """
        if not self._servers:
            yield toolset
            return
        if not self._is_open:
            raise ConfigError(
                f"the tools of MCP server {next(iter(self._servers))!r} are not known yet; open the "
                f"environment, `async with env: …`"
            )
        async with AsyncExitStack() as sessions:
            calls: dict[str, Call] = {name: shared.call for name, shared in self._shared.items()}
            names = {tool.server: None for tool in toolset.tools if isinstance(tool, MCPTool)}
            folder = await sessions.enter_async_context(own_folder()) if names.keys() - calls else ""
            for name in names:
                if name not in calls:
                    session = _session(self._servers[name], folder)
                    calls[name] = (await sessions.enter_async_context(session)).call
            yield Toolset(
                toolset.name,
                tuple(
                    replace(tool, function=partial(calls[tool.server], tool.name))
                    if isinstance(tool, MCPTool)
                    else tool
                    for tool in toolset.tools
                ),
            )

    async def _list_tools(self, server: MCPToolset, sessions: AsyncExitStack) -> Toolset:
        folder = await sessions.enter_async_context(own_folder())
        try:
            if server.per == "run":
                shared = self._shared[server.name] = _SharedSession(server, folder)
                sessions.push_async_callback(shared.aclose)
                listed = await shared.list_tools()
            else:
                async with _session(server, folder) as session:
                    listed = await _in_time(session.list_tools(), server)
        except ToolServerLost as error:
            raise ConfigError(str(error)) from error
        names = [tool.name for tool in listed]
        if unknown := sorted(set(server.only or ()) - set(names)):
            raise ConfigError(
                f"MCP server {server.name!r} has no tools {unknown}; choose from {sorted(names)}"
            )
        taken = [tool for tool in listed if server.only is None or tool.name in server.only]
        return Toolset(server.name, tuple(_tool(server, tool) for tool in taken))


class _SharedSession:
    def __init__(self, server: MCPToolset, folder: str) -> None:
        self._server, self._folder = server, folder
        self._opening, self._opened = asyncio.Lock(), AsyncExitStack()
        self._session: MCPSession | None = None

    async def list_tools(self) -> "list[ListedTool]":
        return await _in_time((await self._live()).list_tools(), self._server)

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> str:
        return await (await self._live()).call(tool, arguments)

    async def aclose(self) -> None:
        self._session = None
        await self._opened.aclose()

    async def _live(self) -> "MCPSession":
        async with self._opening:
            if self._session is None or self._session.is_lost:
                await self.aclose()
                session = _session(self._server, self._folder)
                self._session = await self._opened.enter_async_context(session)
            return self._session


def _session(server: MCPToolset, folder: str) -> "AbstractAsyncContextManager[MCPSession]":
    with needs_extra("mcp", f"MCP server {server.name!r}"):
        from tools.mcp.mcp_session import mcp_session  # noqa: PLC0415  # the package loads slowly
    return mcp_session(server, folder)


async def _in_time(listing: "Awaitable[list[ListedTool]]", server: MCPToolset) -> "list[ListedTool]":
    try:
        return await asyncio.wait_for(listing, server.open_timeout_s)
    except TimeoutError:
        raise ToolServerLost(
            f"MCP server {server.name!r} lists no tools within {server.open_timeout_s:g} s"
        ) from None


def _tool(server: MCPToolset, listed: "ListedTool") -> Tool:
    where = f"tool {listed.name!r:.100} of MCP server {server.name!r}"
    if not re.fullmatch(TOOL_NAME, listed.name):
        raise ConfigError(
            f"{where}: models call tools by 1 to 64 ASCII letters, digits, `_` or `-`; leave it out "
            f"with `only`"
        )
    schema: dict[str, Any] = {"properties": {}, **listed.input_schema}
    description = listed.description or ""
    if schema.get("type") != "object" or not isinstance(schema["properties"], dict):
        raise ConfigError(f"{where}: its schema is of no object; leave it out with `only`")
    try:
        chars = len(json.dumps(schema)) + len(description)
    except (ValueError, RecursionError):
        chars = _MAX_SPEC_CHARS + 1
    if chars > _MAX_SPEC_CHARS:
        raise ConfigError(f"{where}: its description and schema are too long; leave it out with `only`")
    return MCPTool(
        spec=ToolSpec(name=listed.name, description=description, parameters=schema),
        signature=_OpenSignature(description=description, injected={}, schema=schema, model=BaseModel),
        function=_not_open,
        server=server.name,
    )


async def _not_open(arguments: Mapping[str, Any]) -> str:
    raise ConfigError("a tool of an MCP server is called in a rollout, where a session is open")
