"""A logged session as turns with votes.

Messages are OpenAI's chat messages, Anthropic's content blocks, or ShareGPT's `{"from": …, "value": …}`.
Ambiguous input is refused. Missing votes and outcomes are not 0.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, cast

from environments.policy.inference.written_messages import MessageError as SessionError
from environments.policy.inference.written_messages import (
    WrittenMessage,
    parse_entry,
    parse_tools,
)
from environments.record.sessions.api_call import LISTS, as_session
from environments.trajectory import LARGEST_REWARD, Message, Rewards, Span, TokenRow, Turn
from environments.turn_level_reward import aggregate
from tools.calls import ToolResult, ToolSpec

_UP = frozenset({"up", "upvote", "thumbs_up"})
_DOWN = frozenset({"down", "downvote", "thumbs_down"})
NO_SPAN = Span(row=0, start=0, end=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Fields with votes and outcomes, and the value of votes in words."""

    vote_fields: tuple[str, ...] = ("vote", "reward")
    """Fields of a message; `a.b` is field `b` of the object in `a`."""
    outcome_field: str = "outcome"
    upvote: float = 1.0
    downvote: float = -1.0

    def vote(self, message: Mapping[str, Any], where: str) -> float | None:
        given = {name: value for name in self.vote_fields if (value := _at(message, name)) is not None}
        if len(given) > 1:
            raise SessionError(f"{where} has {' and '.join(given)}; a message has one vote")
        for name, value in given.items():
            if value is True or (isinstance(value, str) and value in _UP):
                return self.upvote
            if value is False or (isinstance(value, str) and value in _DOWN):
                return self.downvote
            possible = 'give a number, true, false, "up", "down" or null (nobody voted)'
            return number(value, f"{where}.{name}", possible)
        return None

    def outcome(self, session: Mapping[str, Any]) -> float | None:
        value = _at(session, self.outcome_field)
        if value is None:
            return None
        return number(value, self.outcome_field, "give a number, true (1), false (0) or null (not known)")


def number(value: Any, where: str, possible: str) -> float:
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
    value: Any = fields
    for name in path.split("."):
        if not isinstance(value, Mapping):
            return None
        value = cast("Mapping[str, Any]", value).get(name)
    return value


def messages_in(session: Mapping[str, Any]) -> list[WrittenMessage]:
    named = [name for name in LISTS if session.get(name) is not None]
    if len(named) != 1:
        has = " and ".join(named) or f"only {sorted(session)!s:.200}"
        raise SessionError(f"has {has}; a session has one list of messages, in one of {', '.join(LISTS)}")
    entries = session[named[0]]
    if not isinstance(entries, list) or not entries:
        raise SessionError(f"{named[0]} is {entries!r:.100}; give a list of at least one message")
    said: list[WrittenMessage] = []
    if session.get("system"):
        said += parse_entry({"role": "system", "content": session["system"]}, "system", 0)
    for index, entry in enumerate(cast("list[Any]", entries)):
        said += parse_entry(entry, f"{named[0]}[{index}]", index)
    return said


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    session_id: str | None
    item_id: str | None
    """The item's name; without one, the prompt identifies the item."""
    prompt: tuple[Message, ...]
    turns: tuple[Turn, ...]
    tools: tuple[ToolSpec, ...]
    model: str | None
    rewards: Rewards
    metrics: Mapping[str, float]
    rows: tuple[TokenRow, ...] | None = None
    item: Mapping[str, Any] | None = None
    group: str = ""
    error: str | None = None


def read_session(fields: object, scale: Scale) -> Session:
    if not isinstance(fields, dict):
        raise SessionError(f"is {fields!r:.100}; a session is a JSON object")
    session = as_session(cast("dict[str, Any]", fields))
    said = messages_in(session)
    prompt = list(takewhile(lambda each: each.message.role != "assistant", said))
    for each in prompt:
        if each.message.role == "tool":
            raise SessionError(f"{each.where} is a tool's result, and nothing was called before it")
    if not prompt:
        raise SessionError(f"{said[0].where} is the assistant's; a session begins with what it was asked")
    model = _name(session, "model")
    spoken: list[list[WrittenMessage]] = []
    for each in said[len(prompt) :]:
        if each.message.role == "assistant":
            spoken.append([each])
        else:
            spoken[-1].append(each)
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
        tools=parse_tools(session.get("tools")),
        model=model,
        rewards=Rewards(turns=votes, outcome=outcome, score=aggregate(votes, outcome, "sum")),
        metrics=metrics_in(session.get("metrics")),
    )


def _turn(index: int, said: Sequence[WrittenMessage], model: str | None) -> Turn:
    spoke, *answers = said
    message = spoke.message
    results: list[ToolResult] = []
    unanswered = {call.id: call for call in message.tool_calls}
    for each in takewhile(lambda each: each.message.role == "tool", answers):
        named = each.message.tool_call_id
        # A result without an id answers the next open call.
        call_id = next(iter(unanswered), None) if named is None else named
        call = None if call_id is None else unanswered.pop(call_id, None)
        if call is None:
            open_calls = ", ".join(map(repr, unanswered)) or "none"
            raise SessionError(
                f"{each.where} answers the call {named!r:.100}; calls of the message before it that have no "
                f"result yet: {open_calls:.200}"
            )
        results.append(ToolResult(call_id=call.id, name=call.name, content=each.message.content))
    replies = answers[len(results) :]
    for each in replies:
        if each.message.role == "tool":
            raise SessionError(f"{each.where} is a tool's result after a reply; results come before replies")
    weight = spoke.fields.get("weight")
    if weight not in (None, 0, 1):
        raise SessionError(f"{spoke.where}.weight is {weight!r:.100}; give 0 (not trained), 1 or null")
    return Turn(
        index=index,
        message=message,
        tool_results=tuple(results),
        replies=tuple(each.message for each in replies),
        finish_reason="tool_calls" if message.tool_calls else "stop",
        span=NO_SPAN,
        trained=weight is None or bool(weight),
        weight_version=model,
    )


def metrics_in(given: Any) -> dict[str, float]:
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
