"""Reads requests in OpenAI's chat format, as the mock server gets them, into our values."""

import json
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from environments.trajectory import Message
from tools.calls import ToolCall, ToolSpec


class WireFunction(BaseModel):
    """The function of a call. Some servers send the arguments as an object instead of its text."""

    name: str
    arguments: str | dict[str, Any] = ""


class WireCall(BaseModel):
    """A tool call of an earlier turn; its id may be missing."""

    id: str | None = None
    function: WireFunction


class WirePart(BaseModel):
    """One part of a content list; parts that are not text are refused."""

    type: Literal["text"]
    text: str


class WireMessage(BaseModel):
    """A chat message, as a client sends it."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | list[WirePart] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[WireCall] | None = None
    tool_call_id: str | None = None

    def to_message(self, call_prefix: str) -> Message:
        """The message; a call without an id is named `call_prefix` and its position."""
        content = self.content or ""
        if not isinstance(content, str):
            content = "".join(part.text for part in content)
        return Message(
            role=self.role,
            content=content,
            reasoning=self.reasoning_content or self.reasoning or None,
            tool_calls=tuple(
                ToolCall(
                    id=call.id or f"{call_prefix}_{index}",
                    name=call.function.name,
                    arguments=_text(call.function.arguments),
                )
                for index, call in enumerate(self.tool_calls or [])
            ),
            tool_call_id=self.tool_call_id,
        )


class WireFunctionSpec(BaseModel):
    """The function of an offered tool."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=dict[str, Any])


class WireTool(BaseModel):
    """An offered tool."""

    type: Literal["function"] = "function"
    function: WireFunctionSpec

    def to_spec(self) -> ToolSpec:
        """The tool as our value."""
        spec = self.function
        return ToolSpec(name=spec.name, description=spec.description, parameters=spec.parameters)


class ChatRequest(BaseModel):
    """What `POST /chat/completions` gets; fields that change nothing here are not read."""

    model: str
    messages: list[WireMessage] = Field(min_length=1)
    tools: list[WireTool] | None = None
    seed: int | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    n: Literal[1] | None = None
    stream: Literal[False] | None = None
    logprobs: bool | None = None
    return_token_ids: bool | None = None


def first_problem(error: ValidationError) -> str:
    """Where the first thing wrong is, and what, in one line."""
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(step) for step in first["loc"])
    return f"{place}: {first['msg']}" if place else first["msg"]


def _text(arguments: str | dict[str, Any]) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
