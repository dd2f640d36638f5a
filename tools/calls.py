"""Tool calls, their results, tool descriptions, and the rollout as tools see it."""

import json
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

import orjson

ToolErrorKind = Literal["unknown_tool", "invalid_json", "invalid_arguments", "tool_error"]

CallStatus = Literal["ok", "invalid_json", "unclosed_block", "missing_name", "malformed"]
UNREADABLE: Final[Mapping[str, str]] = {
    "invalid_json": "it is not valid JSON",
    "unclosed_block": "it was not closed",
    "missing_name": "it names no tool",
    "malformed": "it is not in the format of a call",
}


class CachedJson:
    __slots__ = ("_json",)
    _json: bytes

    def to_openai(self) -> dict[str, Any]:
        raise NotImplementedError

    def json(self) -> bytes:
        try:
            return self._json
        except AttributeError:
            content = orjson.dumps(self.to_openai())
            object.__setattr__(self, "_json", content)
            return content


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call as the model wrote it."""

    id: str
    name: str
    arguments: str
    """Raw JSON text, verbatim; may be malformed."""
    status: CallStatus = "ok"
    """Calls with another status are answered with an error instead of run."""
    span: tuple[int, int] | None = None
    """Start and end among the turn's sampled tokens, if known."""

    def to_openai(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """The result of a call."""

    call_id: str
    name: str
    content: str
    error: ToolErrorKind | None = None
    """Reason if the call failed; None if the tool ran, even if its command failed."""
    exit_code: int | None = None
    timed_out: bool = False
    duration_s: float = 0.0


class CachedSignature(CachedJson):
    __slots__ = ("_signature",)
    _signature: str

    def signature(self) -> str:
        """Return the tool in OpenAI's shape as text for prompts, cached."""
        try:
            return self._signature
        except AttributeError:
            text = json.dumps(self.to_openai(), ensure_ascii=False)
            object.__setattr__(self, "_signature", text)
            return text


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec(CachedSignature):
    """A tool's description for the model."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON schema of the arguments."""

    def to_openai(self) -> dict[str, Any]:
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": dict(self.parameters),
            },
        }


class State:
    """Base class of a rollout's state, as returned by `prepare`, so that tools can take it as a parameter."""


class ToolContext(Protocol):
    """The rollout of a tool call, for parameters annotated with this type."""

    @property
    def item(self) -> Any:
        """The rollout's own copy of its item."""
        ...

    @property
    def state(self) -> Any:
        """The state that `prepare` returned."""
        ...

    @property
    def seed(self) -> int:
        """The seed of this rollout."""
        ...

    @property
    def group_seed(self) -> int:
        """The seed that all siblings share."""
        ...

    @property
    def metrics(self) -> MutableMapping[str, float]:
        """Numbers for the record and the summary."""
        ...

    def end(self, reason: str) -> None:
        """End the rollout after this turn; the first reason counts."""
        ...
