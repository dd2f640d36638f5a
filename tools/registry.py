"""The `@tool` decorator, and toolsets that execute calls."""

import inspect
import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from types import MethodType
from typing import Any, Protocol, cast, overload

from pydantic_core import to_jsonable_python

from tools.calls import UNREADABLE, State, ToolCall, ToolContext, ToolErrorKind, ToolResult, ToolSpec
from tools.errors import ConfigError, ToolError
from tools.sandbox.base import ExecResult, Sandbox, run_python
from tools.signature import SELF, ArgumentsRefused, Signature, Unbound, is_state

TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_SHOWN = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutput:
    """A tool's output with more than text."""

    content: str
    exit_code: int | None = None
    timed_out: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Tool:
    """A function, or a method of a `State`, that a model can call."""

    spec: ToolSpec
    signature: Signature
    function: Callable[..., Any]
    parallel: bool = False

    def __repr__(self) -> str:
        return f"<tool {self.name!r}>"

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def needs_sandbox(self) -> bool:
        return Sandbox in self.signature.injected.values()

    @property
    def states(self) -> tuple[type[State], ...]:
        return tuple(kind for kind in self.signature.injected.values() if is_state(kind))

    def __get__(self, instance: object, owner: type) -> Any:
        if self.signature.injected.get(SELF) is not Unbound:
            return self
        if instance is not None:
            return MethodType(self.function, instance)
        injected = {**self.signature.injected, SELF: owner}
        return (
            replace(self, signature=replace(self.signature, injected=injected)) if is_state(owner) else self
        )

    def call(self, arguments: str, injected: Mapping[str, object]) -> Callable[[], Any]:
        """Return a callable that parses the arguments and runs the function, `async` if the tool is."""

        def run() -> Any:
            given = self.function(**injected, **self.signature.parse(arguments))
            return later(given) if inspect.isawaitable(given) else output_of(given, self.name)

        async def run_async() -> ToolOutput:
            return await later(self.function(**injected, **self.signature.parse(arguments)))

        async def later(given: Awaitable[Any]) -> ToolOutput:
            return output_of(await given, self.name)

        return run_async if inspect.iscoroutinefunction(self.function) else run


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...


@overload
def tool(*, name: str | None = None, parallel: bool = False) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(
    function: Callable[..., Any] | None = None, /, *, name: str | None = None, parallel: bool = False
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool from a typed `async def` or `def`, or from such a method of a `State`.

    Parameters annotated `Sandbox`, `ToolContext` or with a `State` are injected by the rollout. All others
    form the JSON schema, which `Annotated[…, Field(…)]` refines. The docstring is what the model reads: its
    text up to the first section, and one entry per parameter under `Args:`. The function returns text, a
    `ToolOutput`, or a value that is shown as JSON.

    A `def` runs on a thread and may block; only an `async def` can use the sandbox. The model sees the
    message of a `ToolError`; any other exception leaves the rollout.

    Args:
        function: Set when the decorator is used bare.
        name: The tool's name for the model; default: the function's name.
        parallel: Calls of one turn run concurrently if all their tools are parallel. Requires `async def`,
            since `def` tools of a rollout run one after the other.

    Raises:
        ConfigError: if the function cannot be a tool.
    """

    def decorate(function: Callable[..., Any]) -> Tool:
        if not inspect.isfunction(function) and not inspect.ismethod(function):
            raise ConfigError(f"@tool makes a tool of a function, and not of {function!r:.100}")
        called = function.__name__ if name is None else name
        if not TOOL_NAME.fullmatch(called):
            raise ConfigError(f"tool name {called!r}: use 1 to 64 ASCII letters, digits, `_` or `-`")
        if parallel and not inspect.iscoroutinefunction(function):
            raise ConfigError(
                f"tool {called!r}: a parallel tool is `async def`; `def` tools run one after the other"
            )
        signature = Signature.of(function)
        spec = ToolSpec(name=called, description=signature.description, parameters=signature.schema)
        return Tool(spec=spec, signature=signature, function=function, parallel=parallel)

    return decorate if function is None else decorate(function)


class RunTool(Protocol):
    """Runs the function of a tool call."""

    async def __call__(
        self, name: str, function: Callable[[], Any], *, busy: Callable[[], bool]
    ) -> ToolOutput:
        """Return the function's output; `busy()` tells whether a command runs in the sandbox."""
        ...


async def run_tool(name: str, function: Callable[[], Any], *, busy: Callable[[], bool]) -> ToolOutput:
    given = function()
    return await given if inspect.isawaitable(given) else given


@dataclass(frozen=True, slots=True)
class Toolset:
    """Tools under one name, which settings can enable or disable."""

    name: str
    tools: tuple[Tool, ...] = ()

    def __post_init__(self) -> None:
        names = [tool.name for tool in self.tools]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(f"toolset {self.name!r} has more than one tool called {', '.join(twice)}")
        if loose := [tool.name for tool in self.tools if Unbound in tool.signature.injected.values()]:
            raise ConfigError(
                f"toolset {self.name!r}: {', '.join(loose)} takes `self`, and is not a method of a State; "
                "list the State class itself, or its method as `MyState.method`"
            )

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(tool.spec for tool in self.tools)

    @classmethod
    def merged(cls, toolsets: Sequence["Toolset"]) -> "Toolset":
        """Concatenate toolsets; ConfigError if two tools share a name."""
        tools = tuple(tool for toolset in toolsets for tool in toolset.tools)
        return cls("+".join(toolset.name for toolset in toolsets), tools)

    def are_parallel(self, calls: Sequence[ToolCall]) -> bool:
        parallel = {tool.name for tool in self.tools if tool.parallel}
        return len(calls) > 1 and all(call.status == "ok" and call.name in parallel for call in calls)

    async def execute(
        self,
        call: ToolCall,
        sandbox: Sandbox,
        *,
        timeout_s: float,
        max_output_chars: int,
        run: RunTool = run_tool,
        context: ToolContext | None = None,
    ) -> ToolResult:
        """Run one call. A malformed call runs nothing and returns an error for the model.

        Args:
            call: The call as the model wrote it.
            sandbox: The sandbox for the tool.
            timeout_s: Upper limit of each command of the tool.
            max_output_chars: Longest `content`; head and tail are kept.
            run: Runs the tool's function.
            context: The rollout, for tools that take its state or the context.

        Raises:
            SandboxError: if the sandbox is broken.
            ConfigError: if the rollout has no state of the tool's type.
            Exception: from the tool's own code, other than `ToolError`.
        """
        started = monotonic()

        def result(output: ToolOutput, error: ToolErrorKind | None = None) -> ToolResult:
            return ToolResult(
                call_id=call.id,
                name=call.name,
                content=limit_length(output.content, max_output_chars),
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
        limited = LimitedSandbox(sandbox, timeout_s)
        values = _values_to_inject(chosen, cast("Sandbox", limited), context)
        function = chosen.call(call.arguments, values)
        try:
            return result(await run(chosen.name, function, busy=lambda: limited.commands > 0))
        except ArgumentsRefused as error:
            content = f"{chosen.name} was not run. {error}"
            return result(ToolOutput(content=content), error.kind)
        except ToolError as error:
            return result(ToolOutput(content=f"Error: {error}"), "tool_error")


def _values_to_inject(tool: Tool, sandbox: Sandbox, context: ToolContext | None) -> dict[str, object]:
    values: dict[str, object] = {}
    for name, kind in tool.signature.injected.items():
        if kind is Sandbox:
            values[name] = sandbox
        elif context is None:
            raise ConfigError(f"tool {tool.name!r} takes {kind.__name__}, which only a rollout gives")
        elif not is_state(kind):
            values[name] = context
        elif isinstance(context.state, kind):
            values[name] = context.state
        else:
            given = type(context.state).__name__
            raise ConfigError(f"tool {tool.name!r} takes {kind.__name__}, and the state is of class {given}")
    return values


class LimitedSandbox:
    """A sandbox with an upper time limit for each command, which counts the running ones."""

    def __init__(self, sandbox: Sandbox, limit_s: float) -> None:
        self._sandbox, self._limit_s, self.commands = sandbox, limit_s, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sandbox, name)

    async def exec(
        self, command: str | Sequence[str], *, timeout_s: float = 60.0, **options: Any
    ) -> ExecResult:
        return await self._count(
            self._sandbox.exec(command, timeout_s=min(timeout_s, self._limit_s), **options)
        )

    async def shell(self, command: str, *, timeout_s: float = 60.0, **options: Any) -> ExecResult:
        return await self._count(
            self._sandbox.shell(command, timeout_s=min(timeout_s, self._limit_s), **options)
        )

    async def run_python(self, source: str, *, stdin: bytes = b"", timeout_s: float = 60.0) -> ExecResult:
        limit_s = min(timeout_s, self._limit_s)
        return await self._count(run_python(self._sandbox, source, stdin=stdin, timeout_s=limit_s))

    async def _count(self, command: Awaitable[ExecResult]) -> ExecResult:
        self.commands += 1
        try:
            return await command
        finally:
            self.commands -= 1


def output_of(given: Any, tool: str) -> ToolOutput:
    """Convert a tool's return value: text as it is, other values as JSON.

    Raises:
        ToolError: if a number is too long to print, which the model may have requested.
        ConfigError: if the value is not JSON.
    """
    if isinstance(given, ToolOutput):
        if not isinstance(given.content, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # user code
            raise ConfigError(f"tool {tool!r}: a ToolOutput's content is text, got {given.content!r:.99}")
        return given
    if isinstance(given, str):
        return ToolOutput(content=given)
    try:
        return ToolOutput(content=json.dumps(given, ensure_ascii=False, default=_plain))
    except (TypeError, ValueError) as error:
        if "integer string conversion" in str(error):
            raise ToolError("the result holds a number that is too long to be written") from None
        reason = "is `await` missing?" if inspect.isawaitable(given) else str(error)[:_SHOWN]
        raise ConfigError(
            f"tool {tool!r} returned {type(given).__name__}, which is not JSON ({reason}); return str, "
            "ToolOutput, or what JSON holds: numbers, lists, dicts, dataclasses, pydantic models"
        ) from None


def limit_length(text: str, max_chars: int) -> str:
    """Shorten a text to its head and tail, with a note about the cut."""
    if len(text) <= max_chars:
        return _encodable(text)
    room = max(0, max_chars - len(_cut_note(len(text), len(text))))
    head, tail = room - room // 2, room // 2
    note = _cut_note(len(text) - head - tail, len(text))
    return _encodable((text[:head] + note + text[len(text) - tail :])[:max_chars])


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        raise TypeError("bytes are not text: decode them")
    if isinstance(value, Iterator):
        raise TypeError("an iterator is not a value: make a list of it")
    return to_jsonable_python(value, bytes_mode="base64")


def _encodable(text: str) -> str:
    # Lone surrogates of undecodable file names cannot be recorded as UTF-8.
    return text.encode("utf-8", "replace").decode("utf-8")


def _cut_note(cut: int, total: int) -> str:
    return f"\n[... {cut} of {total} characters cut ...]\n"
