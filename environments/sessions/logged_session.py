"""One logged session as a conversation of turns with their votes, before it has token rows.

Its messages are OpenAI's chat messages; content blocks with `tool_use` and `tool_result`, as Anthropic has
them; or `{"from": …, "value": …}`, as ShareGPT has them. What could mean two things is refused. Of votes and
outcomes, a missing value is `None`, and never 0.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, cast

from environments.inference.chat_reply import ReplyError, is_empty, read_message
from environments.trajectory import LARGEST_REWARD, Message, Rewards, Role, Span, Turn
from environments.turn_level_reward import aggregate
from tools.calls import ToolCall, ToolResult, ToolSpec
from tools.json_input import JsonError, read_exact_json

_UP = frozenset({"up", "upvote", "thumbs_up"})
_DOWN = frozenset({"down", "downvote", "thumbs_down"})
LISTS = ("messages", "conversation", "conversations")
"""Fields that hold the messages, one of them."""
_CALL_ROLES = frozenset({"function_call", "tool_call"})
"""Messages whose text is a call, or a list of calls, as JSON."""
_TEXT_PARTS = frozenset({"text", "input_text", "output_text"})
_NO_SPAN = Span(row=0, start=0, end=0)


class SessionError(Exception):
    """Something of a logged session cannot be taken; the text has the place and the alternatives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Where votes and outcomes stand, and what a vote in words is worth."""

    vote_fields: tuple[str, ...] = ("vote", "reward")
    """Of a message, one of them; `a.b` is field `b` of the object in `a`."""
    outcome_field: str = "outcome"
    """Of the session, likewise."""
    upvote: float = 1.0
    downvote: float = -1.0

    def vote(self, message: Mapping[str, Any], where: str) -> float | None:
        """What a message was rated.

        Raises:
            SessionError: several fields have one, or it is not a vote.
        """
        given = {name: value for name in self.vote_fields if (value := _at(message, name)) is not None}
        if len(given) > 1:
            raise SessionError(f"{where} has {' and '.join(given)}; a message has one vote")
        for name, value in given.items():
            return self._vote(value, f"{where}.{name}")
        return None

    def outcome(self, session: Mapping[str, Any]) -> float | None:
        """What the session came to.

        Raises:
            SessionError: it is neither a number nor true or false.
        """
        value = _at(session, self.outcome_field)
        if value is None:
            return None
        return number(value, self.outcome_field, "give a number, true (1), false (0) or null (not known)")

    def _vote(self, value: Any, where: str) -> float:
        if value is True or (isinstance(value, str) and value in _UP):
            return self.upvote
        if value is False or (isinstance(value, str) and value in _DOWN):
            return self.downvote
        return number(value, where, 'give a number, true, false, "up", "down" or null (nobody voted)')


def number(value: Any, where: str, possible: str) -> float:
    """A number of JSON that credit can be computed from.

    Raises:
        SessionError: it is not one.
    """
    if not isinstance(value, int | float):
        raise SessionError(f"{where} is {value!r:.100}; {possible}")
    try:
        given = float(value)
    except OverflowError:
        given = math.inf
    if not abs(given) <= LARGEST_REWARD:
        raise SessionError(f"{where} is {value!r:.100}; numbers up to {LARGEST_REWARD:g} are possible")
    return given


def _at(fields: Mapping[str, Any], path: str) -> Any:
    """The value at `a.b`, or `None`."""
    value: Any = fields
    for name in path.split("."):
        if not isinstance(value, Mapping):
            return None
        value = cast("Mapping[str, Any]", value).get(name)
    return value


_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "function_call": "assistant",
    "tool_call": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
    "tool_response": "tool",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedMessage:
    """A message, and the fields that it was logged with."""

    message: Message
    fields: Mapping[str, Any]
    where: str
    """For people: `messages[3]`."""


def messages_in(session: Mapping[str, Any]) -> list[LoggedMessage]:
    """All messages of a session, in order.

    Raises:
        SessionError: there are none, or one cannot be taken.
    """
    named = [name for name in LISTS if session.get(name) is not None]
    if len(named) != 1:
        has = " and ".join(named) or f"only {sorted(session)!s:.200}"
        raise SessionError(f"has {has}; a session has one list of messages, in one of {', '.join(LISTS)}")
    entries = session[named[0]]
    if not isinstance(entries, list) or not entries:
        raise SessionError(f"{named[0]} is {entries!r:.100}; give a list of at least one message")
    said = list(_system(session.get("system")))
    for index, entry in enumerate(cast("list[Any]", entries)):
        said += _messages_of(entry, f"{named[0]}[{index}]", index)
    return said


def tools_in(session: Mapping[str, Any]) -> tuple[ToolSpec, ...]:
    """The tools that the agent was offered, as OpenAI or Anthropic have them, or as JSON text of them.

    Raises:
        SessionError: they are something else.
    """
    given: Any = session.get("tools")
    if isinstance(given, str):
        given = _json(given, "tools") if given.strip() else None
    if given is None:
        return ()
    if not isinstance(given, list):
        raise SessionError(f"tools is {given!r:.100}; give a list of tools")
    return tuple(_tool(each, f"tools[{index}]") for index, each in enumerate(cast("list[Any]", given)))


def text(value: Any, where: str) -> str:
    """Text that a session has somewhere.

    Raises:
        SessionError: it is something else.
    """
    if not isinstance(value, str):
        raise SessionError(f"{where} is {value!r:.100}; give text")
    return value


def _system(given: Any) -> Iterator[LoggedMessage]:
    """A system prompt that stands beside the messages."""
    if given:
        yield LoggedMessage(
            message=Message(role="system", content=_text(given, "system")), fields={}, where="system"
        )


def _messages_of(entry: Any, where: str, index: int) -> Iterator[LoggedMessage]:
    """One entry as messages: several where tool results are blocks of a user's message."""
    if not isinstance(entry, dict):
        raise SessionError(f"{where} is {entry!r:.100}; a message is an object")
    fields = cast("dict[str, Any]", entry)
    written = fields.get("role", fields.get("from"))
    role = _ROLES.get(written) if isinstance(written, str) else None
    if role is None:
        raise SessionError(f"{where} has the role {written!r:.100}; choose one of {', '.join(_ROLES)}")
    content = fields.get("content", fields.get("value"))
    if role == "assistant":
        messages = [_assistant(fields, content, where, f"call_{index}", is_call=written in _CALL_ROLES)]
    elif role == "tool":
        messages = [_result(_text(content, f"{where}.content"), fields.get("tool_call_id"), where)]
    else:
        messages = _from_blocks(role, content, where)
    for message in messages:
        yield LoggedMessage(message=message, fields=fields, where=where)


def _assistant(fields: Mapping[str, Any], content: Any, where: str, prefix: str, *, is_call: bool) -> Message:
    if content is not None:
        _refuse_other_parts(content, f"{where}.content")
    given = {**fields, "role": "assistant", "content": content}
    if is_call:
        calls = _json(text(content, where), where)
        given = {"tool_calls": cast("list[Any]", calls) if isinstance(calls, list) else [calls]}
    try:
        message, _ = read_message(given, lambda index: f"{prefix}_{index}")
    except ReplyError as error:
        raise SessionError(f"{where}: {error}") from None
    if content is None and is_empty(message):
        raise SessionError(f"{where} says and calls nothing; give its content as text, empty if it was so")
    if unnamed := [call for call in message.tool_calls if call.status != "ok"]:
        raise SessionError(f"{where} has a call without a name: {unnamed[0].arguments!r:.100}")
    return message


def _from_blocks(role: Role, content: Any, where: str) -> list[Message]:
    """The message of a user or the system, after the tool results before it in blocks."""
    blocks = cast("list[Any]", content) if isinstance(content, list) else []
    results = [each for each in blocks if _kind(each) == "tool_result"]
    if not results:
        return [Message(role=role, content=_text(content, f"{where}.content"))]
    rest = blocks[len(results) :]
    if role != "user" or any(_kind(each) == "tool_result" for each in rest):
        raise SessionError(f"{where} has a tool_result after other blocks; results come first, of role user")
    messages = [
        _result(_text(each.get("content", ""), where), each.get("tool_use_id"), where) for each in results
    ]
    return [*messages, Message(role="user", content=_text(rest, where))] if rest else messages


def _result(content: str, call_id: Any, where: str) -> Message:
    """A result; one without an id answers the next call."""
    named = None if call_id is None else text(call_id, f"{where}, the id of its call,")
    return Message(role="tool", content=content, tool_call_id=named)


def _text(content: Any, where: str) -> str:
    """The text of a content: itself, or that of its parts."""
    parts = cast("list[Any]", content) if isinstance(content, list) else [content]
    texts: list[str] = []
    for part in parts:
        kind = _kind(part)
        if kind is not None and kind not in _TEXT_PARTS:
            raise SessionError(f"{where} has a part of type {kind!r:.100}; only text is taken, no images")
        texts.append(text(part if kind is None else part.get("text"), where))
    return "".join(texts)


def _refuse_other_parts(content: Any, where: str) -> None:
    """Refuse what would be read as no text at all: of an assistant's parts only some are text."""
    for part in cast("list[Any]", content) if isinstance(content, list) else [content]:
        if (kind := _kind(part)) is None or kind in _TEXT_PARTS:
            _text([part], where)


def _kind(part: Any) -> str | None:
    """The type of a content part; `None`: it is not a part."""
    return str(cast("dict[str, Any]", part).get("type", "text")) if isinstance(part, dict) else None


def _tool(given: Any, where: str) -> ToolSpec:
    fields = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    inner = fields.get("function", fields)
    known = cast("dict[str, Any]", inner) if isinstance(inner, dict) else {}
    schema = known.get("parameters", known.get("input_schema", {}))
    name = known.get("name")
    if not isinstance(name, str) or not isinstance(schema, dict):
        raise SessionError(f"{where} is {given!r:.100}; a tool has a name and a schema of its parameters")
    described = text(known.get("description") or "", f"{where}.description")
    return ToolSpec(name=name, description=described, parameters=cast("dict[str, Any]", schema))


def _json(written: str, where: str) -> Any:
    try:
        return read_exact_json(written)
    except JsonError:
        raise SessionError(f"{where} holds {written!r:.100}, which is not JSON") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """The content of a line of the file."""

    session_id: str | None
    item_id: str | None
    """Names the prompt; `None`: the prompt is its own name."""
    prompt: tuple[Message, ...]
    turns: tuple[Turn, ...]
    """Without trajectory if the assistant is silent; they have no rows yet."""
    tools: tuple[ToolSpec, ...]
    model: str | None
    rewards: Rewards
    metrics: Mapping[str, float]


def read_session(fields: object, scale: Scale) -> Session:
    """The session that a JSON value is.

    Raises:
        SessionError: something in it cannot be taken.
    """
    if not isinstance(fields, dict):
        raise SessionError(f"is {fields!r:.100}; a session is a JSON object")
    session = cast("dict[str, Any]", fields)
    said = messages_in(session)
    prompt = list(takewhile(lambda each: each.message.role != "assistant", said))
    for each in prompt:
        if each.message.role == "tool":
            raise SessionError(f"{each.where} is a tool's result, and nothing was called before it")
    if not prompt:
        raise SessionError(f"{said[0].where} is the assistant's; a session begins with what it was asked")
    model = _name(session, "model")
    spoken = _turns(said[len(prompt) :])
    votes = tuple(scale.vote(each[0].fields, each[0].where) for each in spoken)
    for each in said:
        if each.message.role != "assistant" and scale.vote(each.fields, each.where) is not None:
            raise SessionError(
                f"{each.where} has a vote; it belongs on the assistant's message that it rates"
            )
    outcome = scale.outcome(session)
    return Session(
        session_id=_name(session, "id"),
        item_id=_name(session, "item_id"),
        prompt=tuple(each.message for each in prompt),
        turns=tuple(_turn(index, each, model) for index, each in enumerate(spoken)),
        tools=tools_in(session),
        model=model,
        rewards=Rewards(turns=votes, outcome=outcome, score=aggregate(votes, outcome, "sum")),
        metrics=_metrics(session.get("metrics")),
    )


def _turns(said: Sequence[LoggedMessage]) -> list[list[LoggedMessage]]:
    """Each assistant message with what follows it."""
    turns: list[list[LoggedMessage]] = []
    for each in said:
        if each.message.role == "assistant":
            turns.append([each])
        else:
            turns[-1].append(each)
    return turns


def _turn(index: int, said: Sequence[LoggedMessage], model: str | None) -> Turn:
    spoke, *answers = said
    message = spoke.message
    results = list(takewhile(lambda each: each.message.role == "tool", answers))
    replies = answers[len(results) :]
    for each in replies:
        if each.message.role == "tool":
            raise SessionError(f"{each.where} is a tool's result after a reply; results come before replies")
    return Turn(
        index=index,
        message=message,
        tool_results=_results(message.tool_calls, results),
        replies=tuple(each.message for each in replies),
        finish_reason="tool_calls" if message.tool_calls else "stop",
        span=_NO_SPAN,
        trained=_trained(spoke),
        weight_version=model,
    )


def _results(calls: Sequence[ToolCall], answers: Sequence[LoggedMessage]) -> tuple[ToolResult, ...]:
    """The results of a message's calls; one without an id answers the next call that has none yet."""
    unanswered = {call.id: call for call in calls}
    results: list[ToolResult] = []
    for each in answers:
        named = each.message.tool_call_id
        call_id = next(iter(unanswered), None) if named is None else named
        call = None if call_id is None else unanswered.pop(call_id, None)
        if call is None:
            open_calls = ", ".join(map(repr, unanswered)) or "none"
            raise SessionError(
                f"{each.where} answers the call {named!r:.100}; calls of the message before it that have no "
                f"result yet: {open_calls:.200}"
            )
        results.append(ToolResult(call_id=call.id, name=call.name, content=each.message.content))
    return tuple(results)


def _trained(said: LoggedMessage) -> bool:
    """OpenAI's `weight` of a message: 0 leaves it out of training."""
    weight = said.fields.get("weight")
    if weight not in (None, 0, 1):
        raise SessionError(f"{said.where}.weight is {weight!r:.100}; give 0 (not trained), 1 or null")
    return weight is None or bool(weight)


def _metrics(given: Any) -> dict[str, float]:
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise SessionError(f"metrics is {given!r:.100}; give numbers by name")
    named = cast("dict[str, Any]", given)
    return {
        name: number(value, f"metrics.{name}", "a metric is a number")
        for name, value in named.items()
        if value is not None
    }


def _name(session: Mapping[str, Any], field: str) -> str | None:
    value = session.get(field)
    if value is None or (isinstance(value, str) and value):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise SessionError(f"{field} is {value!r:.100}; give text, a whole number or null")
