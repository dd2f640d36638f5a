"""What passes between a model and its tools: the call, the result, and the tool's description."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import orjson

ToolErrorKind = Literal["unknown_tool", "invalid_json", "invalid_arguments", "tool_error"]

CallStatus = Literal["ok", "invalid_json", "unclosed_block", "missing_name", "malformed"]
"""What a parser made of a call in the text that a model wrote."""
UNREADABLE: Final[Mapping[str, str]] = {
    "invalid_json": "it is not valid JSON",
    "unclosed_block": "it was not closed",
    "missing_name": "it names no tool",
    "malformed": "it is not in the format of a call",
}
"""The error text for a model whose call's status is not `ok`."""


class CachedJson:
    """A value that no request writes as JSON twice."""

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
    """Raw JSON text, verbatim: it may be malformed."""
    status: CallStatus = "ok"
    """Anything else: a parser could not read it as a call, and it is answered instead of run."""
    span: tuple[int, int] | None = None
    """Where it stands among the turn's sampled tokens, start and end; `None`: unknown."""

    def to_openai(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What a call gave back to the model."""

    call_id: str
    name: str
    content: str
    error: ToolErrorKind | None = None
    """Why the call itself failed; `None` when the tool ran, whatever the command in it returned."""
    exit_code: int | None = None
    """Exit status, for tools that run a command."""
    timed_out: bool = False
    duration_s: float = 0.0


class CachedSignature(CachedJson):
    """A tool that no prompt writes as text twice."""

    __slots__ = ("_signature",)
    _signature: str

    def signature(self) -> str:
        """The value in OpenAI's shape as text for a prompt, made once."""
        try:
            return self._signature
        except AttributeError:
            text = json.dumps(self.to_openai(), ensure_ascii=False)
            object.__setattr__(self, "_signature", text)
            return text


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec(CachedSignature):
    """A tool as the model sees it."""

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
