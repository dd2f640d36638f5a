"""Tools a model can call: `@tool` makes one from a typed function, a `Toolset` executes calls."""

import inspect
import re
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, Concatenate, ParamSpec, Protocol, Unpack, overload

from tools.calls import UNREADABLE, ToolCall, ToolErrorKind, ToolResult, ToolSpec
from tools.errors import ConfigError, ToolError
from tools.sandbox.base import (
    MAX_OUTPUT_BYTES,
    MAX_READ_BYTES,
    ExecOptions,
    ExecResult,
    Sandbox,
    SandboxRecord,
)
from tools.signature import ArgumentsRefused, Signature

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_P = ParamSpec("_P")
_SHOWN = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutput:
    """What a tool gives back when it is more than text."""

    content: str
    exit_code: int | None = None
    """Exit status of the command that the tool ran."""
    timed_out: bool = False


Given = str | ToolOutput
"""What a tool's function gives; a `def` gives it, an `async def` gives an awaitable of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that a model can call."""

    spec: ToolSpec
    signature: Signature
    function: Callable[..., Given | Awaitable[Given]]
    """Takes the sandbox, then the arguments by name."""

    @property
    def name(self) -> str:
        """What the model calls it."""
        return self.spec.name


@overload
def tool(function: Callable[Concatenate[Sandbox, _P], Given | Awaitable[Given]], /) -> Tool: ...


@overload
def tool(*, name: str) -> Callable[[Callable[..., Given | Awaitable[Given]]], Tool]: ...


def tool(
    function: Callable[..., Given | Awaitable[Given]] | None = None, /, *, name: str | None = None
) -> Tool | Callable[[Callable[..., Given | Awaitable[Given]]], Tool]:
    """Make a tool from `async def f(sandbox: Sandbox, …) -> str | ToolOutput`, or from a `def`.

    A `def` runs on the rollout's own thread and may block; the sandbox can only be used by an `async def`.

    The signature after the sandbox is the JSON schema; `Annotated[…, Field(…)]` refines it. The docstring is
    what the model reads: its text up to the first section, and one entry per parameter under `Args:`.

    A `ToolError` that the function raises is shown to the model. Any other exception leaves the rollout.

    Args:
        function: Given when the decorator is used bare.
        name: What the model calls the tool; the function's own name when unset.

    Raises:
        ConfigError: the function cannot be a tool.
    """

    def decorate(function: Callable[..., Given | Awaitable[Given]]) -> Tool:
        called = function.__name__ if name is None else name
        if not _NAME.fullmatch(called):
            raise ConfigError(f"tool name {called!r}: use 1 to 64 ASCII letters, digits, `_` or `-`")
        signature = Signature.of(function)
        spec = ToolSpec(name=called, description=signature.description, parameters=signature.schema)
        return Tool(spec=spec, signature=signature, function=function)

    return decorate if function is None else decorate(function)


class RunTool(Protocol):
    """Runs a tool's function, within whatever limits the caller sets."""

    async def __call__(self, name: str, function: Callable[[], Any], *, busy: Callable[[], bool]) -> Any:
        """What the function gives; `busy` says whether a command of it is running in the sandbox."""
        ...


async def run_tool(name: str, function: Callable[[], Any], *, busy: Callable[[], bool]) -> Any:
    """Run it here and now, with no limit but those of its commands."""
    given = function()
    return await given if inspect.isawaitable(given) else given


@dataclass(frozen=True, slots=True)
class Toolset:
    """Tools under one name, by which they can be enabled and disabled."""

    name: str
    tools: tuple[Tool, ...] = ()

    def __post_init__(self) -> None:
        names = [tool.name for tool in self.tools]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(f"toolset {self.name!r} has more than one tool called {', '.join(twice)}")

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools as the model sees them."""
        return tuple(tool.spec for tool in self.tools)

    @classmethod
    def merged(cls, toolsets: Sequence["Toolset"]) -> "Toolset":
        """All tools of several toolsets, in order.

        Raises:
            ConfigError: two tools share a name.
        """
        tools = tuple(tool for toolset in toolsets for tool in toolset.tools)
        return cls("+".join(toolset.name for toolset in toolsets), tools)

    async def execute(
        self,
        call: ToolCall,
        sandbox: Sandbox,
        *,
        timeout_s: float,
        max_output_chars: int,
        run: RunTool = run_tool,
    ) -> ToolResult:
        """Run one call. A call that cannot be understood runs nothing and says what was wrong.

        Args:
            call: As the model wrote it.
            sandbox: Where the tool acts.
            timeout_s: Longest that any one command of the tool may take, whatever the tool asks for.
            max_output_chars: Longest `content`; head and tail are kept.
            run: Runs the tool's function.

        Raises:
            SandboxError: the sandbox is broken.
            Exception: what the tool's own code raised, other than `ToolError`; it is a bug in the tool.
        """
        started = monotonic()

        def result(output: ToolOutput, error: ToolErrorKind | None = None) -> ToolResult:
            return ToolResult(
                call_id=call.id,
                name=call.name,
                content=bounded(output.content, max_output_chars),
                error=error,
                exit_code=output.exit_code,
                timed_out=output.timed_out,
                duration_s=monotonic() - started,
            )

        if call.status != "ok":
            problem = UNREADABLE.get(call.status, call.status)
            content = f"The call was not run: {problem}. Write it again, in the format of calls."
            return result(ToolOutput(content=content), "invalid_json")
        chosen = next((tool for tool in self.tools if tool.name == call.name), None)
        if chosen is None:
            names = ", ".join(tool.name for tool in self.tools) or "none"
            return result(
                ToolOutput(content=f"There is no tool {call.name[:_SHOWN]!r}. Tools: {names}."),
                "unknown_tool",
            )
        try:
            arguments = chosen.signature.parse(call.arguments)
            limited = _TimeLimited(sandbox, timeout_s)
            function = partial(chosen.function, limited, **arguments)
            output = await run(chosen.name, function, busy=lambda: limited.commands > 0)
        except ArgumentsRefused as error:
            content = f"{chosen.name} was not run. {error}"
            return result(ToolOutput(content=content), error.kind)
        except ToolError as error:
            return result(ToolOutput(content=f"Error: {error}"), "tool_error")
        if isinstance(output, str):
            return result(ToolOutput(content=output))
        if not isinstance(output, ToolOutput):
            raise TypeError(
                f"tool {chosen.name!r} returned {type(output).__name__}; return str or ToolOutput"
            )
        return result(output)


def bounded(text: str, max_chars: int) -> str:
    """The text, or its head and tail around a note of how much was cut; never longer than `max_chars`."""
    if len(text) <= max_chars:
        return _encodable(text)
    room = max(0, max_chars - len(_cut_note(len(text), len(text))))
    head, tail = room - room // 2, room // 2
    note = _cut_note(len(text) - head - tail, len(text))
    return _encodable((text[:head] + note + text[len(text) - tail :])[:max_chars])


def _encodable(text: str) -> str:
    # A lone surrogate (an undecodable file name) cannot be written to a record as UTF-8.
    return text.encode("utf-8", "replace").decode("utf-8")


def _cut_note(cut: int, total: int) -> str:
    return f"\n[... {cut} of {total} characters cut ...]\n"


@dataclass(slots=True)
class _TimeLimited:
    """The sandbox as a tool gets it: no command may take longer than the rollout allows."""

    sandbox: Sandbox
    limit_s: float
    commands: int = 0
    """Those that are running; each one ends by its own limit."""

    @property
    def record(self) -> SandboxRecord:
        return self.sandbox.record

    @property
    def workdir(self) -> str:
        return self.sandbox.workdir

    async def exec(
        self, command: str | Sequence[str], *, timeout_s: float = 60.0, **options: Unpack[ExecOptions]
    ) -> ExecResult:
        with self._command():
            return await self.sandbox.exec(command, timeout_s=min(timeout_s, self.limit_s), **options)

    async def shell(
        self, command: str, *, timeout_s: float = 60.0, max_output_bytes: int = MAX_OUTPUT_BYTES
    ) -> ExecResult:
        limit_s = min(timeout_s, self.limit_s)
        with self._command():
            return await self.sandbox.shell(command, timeout_s=limit_s, max_output_bytes=max_output_bytes)

    @contextmanager
    def _command(self) -> Generator[None]:
        self.commands += 1
        try:
            yield
        finally:
            self.commands -= 1

    async def read_file(self, path: str, *, max_bytes: int = MAX_READ_BYTES) -> bytes:
        return await self.sandbox.read_file(path, max_bytes=max_bytes)

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        await self.sandbox.write_file(path, data, mode=mode)

    async def put_archive(self, archive: bytes, path: str = ".") -> None:
        await self.sandbox.put_archive(archive, path)

    async def get_archive(self, path: str, *, max_bytes: int = MAX_READ_BYTES) -> bytes:
        return await self.sandbox.get_archive(path, max_bytes=max_bytes)
