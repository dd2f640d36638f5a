"""One logged session as a conversation of turns with their votes, before it has token rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, cast

from environments.sessions.session_messages import LoggedMessage, messages_in, tools_in
from environments.sessions.session_votes import Scale, SessionError, number
from environments.trajectory import Message, Rewards, Span, Turn
from environments.turn_level_reward import aggregate
from tools.calls import ToolCall, ToolResult, ToolSpec

_NO_SPAN = Span(row=0, start=0, end=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What a line of the file says."""

    session_id: str | None
    item_id: str | None
    """Names the prompt; `None`: the prompt is its own name."""
    prompt: tuple[Message, ...]
    turns: tuple[Turn, ...]
    """None where the assistant said nothing; they have no rows yet."""
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
