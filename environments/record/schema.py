"""The schema of the record, `turnwise.group/2`: docs/record.md has its fields.

Text stands once, in the column `messages` that Atropos' readers know; turns refer to it by index.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, TypeAdapter

from environments.trajectory import (
    CreditedGroup,
    Failure,
    JudgeCall,
    Kept,
    Message,
    TokenRow,
    Trajectory,
    TrajectoryGroup,
    Turn,
)
from environments.wire.views import list_scores
from tools.calls import ToolSpec
from tools.time_profile import TimeProfile

SCHEMA = "turnwise.group/2"
NO_ROWS: Mapping[str, Any] = {"tokens": [], "inference_logprobs": None, "row_logprobs": None}
"""Replaces the columns of token rows."""


_OF_GROUP = ("group_id", "env", "item_id", "epoch", "item", "item_hash", "fingerprint")
_OF_CREDIT = ("status", "reason", "policy", "estimator", "estimator_params", "turns_without_peer")
COPIED = frozenset({"tokens", "masks", "scores", "advantages", "messages", "overrides"})
"""Columns without a check for NaN: typed ids, and copies of trajectories' fields."""
LOGPROBS = ("inference_logprobs", "row_logprobs")


class LineFields(BaseModel):
    """The fields that restore a group; other columns are for Atropos' tools."""

    # Built on first use, since that takes longer than this package's imports.
    model_config = ConfigDict(extra="ignore", defer_build=True)

    group_id: str
    env: str
    item_id: str
    epoch: int
    item: Any
    item_hash: str | None
    fingerprint: str | None
    status: Literal["ok", "no_credit", "alone", "failed"]
    reason: str | None
    policy: str
    estimator: str
    estimator_params: dict[str, Any]
    turns_without_peer: int
    # `TokenRow` checks the numbers.
    tokens: list[list[Any]]
    inference_logprobs: list[list[Any]] | None
    row_logprobs: list[list[Any] | None] | None = None
    messages: list[Any]
    trajectories: list[dict[str, Any]]
    judge_calls: tuple[JudgeCall, ...]
    failures: tuple[Failure, ...]
    toolsets: tuple[tuple[ToolSpec, ...], ...] = ()
    evaluation: bool = False
    error: str | None = None
    profile: TimeProfile | None = None

    def rows(self) -> list[TokenRow]:
        logprobs = self.inference_logprobs or self.row_logprobs or [None] * len(self.tokens)
        return [
            TokenRow(token_ids=ids, logprobs=values)
            for ids, values in zip(self.tokens, logprobs, strict=True)
        ]


READ_BESIDE_ROWS = tuple(name for name in LineFields.model_fields if name not in NO_ROWS)


def to_fields(credited: CreditedGroup) -> dict[str, Any]:
    """Return the fields of a group's line, those that identify the group first."""
    group = credited.group
    columns = list_scores(credited)
    if columns["inference_logprobs"] is None:
        columns["row_logprobs"] = [
            None if row.logprobs is None else list(row.logprobs) for t in group.trajectories for row in t.rows
        ]
    # The trajectories' turns have these.
    for override in columns["overrides"] or ():
        for name in ("turn_kinds", "weight_versions", "weight_spans", "sibling"):
            override.pop(name, None)
    scored = [t.rewards is not None for t in group.trajectories for _ in t.rows]
    columns["scores"] = [
        score if known else None for score, known in zip(columns["scores"], scored, strict=True)
    ]
    failures = _short(_FAILURES.dump_python(group.failures, mode="json", warnings=False))
    for failure in failures:
        for name in _CALLS:
            if calls := _short(failure.pop(name, [])):
                failure[name] = calls
    toolsets: list[tuple[ToolSpec, ...]] = []
    fields: dict[str, Any] = {
        "schema": SCHEMA,
        **{name: getattr(group, name) for name in _OF_GROUP},
        **{name: getattr(credited, name) for name in _OF_CREDIT},
        "estimator_params": dict(credited.estimator_params),
        **columns,
        "trajectories": _trajectories(credited, toolsets),
        "judge_calls": _short(_JUDGE_CALLS.dump_python(group.judge_calls, mode="json", warnings=False)),
        "failures": failures,
    }
    seldom = {
        "toolsets": [_TOOLS.dump_python(tools, mode="json", warnings=False) for tools in toolsets],
        "evaluation": group.is_evaluation,
        "error": group.error,
        "profile": None if group.profile is None else asdict(group.profile),
    }
    return fields | {name: value for name, value in seldom.items() if value not in (None, False, [])}


def read(fields: dict[str, Any], *, rows: bool = True) -> CreditedGroup:
    line = LineFields.model_validate(fields if rows else {**fields, **NO_ROWS})
    token_rows = line.rows() if rows else None
    group = TrajectoryGroup(
        **{name: getattr(line, name) for name in _OF_GROUP},
        is_evaluation=line.evaluation,
        trajectories=tuple(_restore(each, token_rows, line) for each in line.trajectories),
        failures=line.failures,
        judge_calls=line.judge_calls,
        error=line.error,
        profile=line.profile,
    )
    return CreditedGroup(
        group=group,
        advantages=tuple(
            tuple(float(value) for value in fields["advantages"]) for fields in line.trajectories
        ),
        **{name: getattr(line, name) for name in _OF_CREDIT},
    )


_TRAJECTORY = TypeAdapter(Trajectory)
_TURN = TypeAdapter(Turn)
_FAILURES = TypeAdapter(tuple[Failure, ...])
_JUDGE_CALLS = TypeAdapter(tuple[JudgeCall, ...])
_MESSAGE = TypeAdapter(Message)
_TOOLS = TypeAdapter(tuple[ToolSpec, ...])
_CONTEXT = TypeAdapter[tuple[Kept | Message, ...]](tuple[Kept | Message, ...])
_TEXT = {"message", "replies"}
_DEFAULTS: dict[str, Any] = {
    "session_id": None,
    "trunk": None,
    "branch_turn": None,
    "end_reason": None,
    "agent_caused": None,
    "agent": None,
    "tools": [],
    "user_calls": [],
    "summariser_calls": [],
    "other_calls": [],
    "text_scores": [],
    "usage": {},
    "refuses_group": False,
    "passed": None,
    "artefacts": [],
    "contents": {},
    "profile": None,
    "stale": None,
}
"""Fields are omitted from a line where they have these values."""
_CALLS = ("judge_calls", "user_calls", "summariser_calls", "other_calls")


def _trajectories(credited: CreditedGroup, toolsets: list[tuple[ToolSpec, ...]]) -> list[dict[str, Any]]:
    dumped: list[dict[str, Any]] = []
    first_row = 0
    for trajectory, advantages in zip(credited.group.trajectories, credited.advantages, strict=True):
        bare = replace(trajectory, prompt=(), turns=(), rows=(), tools=(), artefacts=(), contents={})
        (fields,) = _short([_TRAJECTORY.dump_python(bare, mode="json", warnings=False)])
        for name in _CALLS:
            if name in fields:
                fields[name] = _short(fields[name])
        if trajectory.sandbox is not None:
            _drop_empty(fields["sandbox"]["limits"], ("read_only", "packages"))
        if fields["rewards"] is not None:
            _drop_empty(fields["rewards"], ("turn_raw", "outcome_raw"))
        if trajectory.tools:
            if trajectory.tools not in toolsets:
                toolsets.append(trajectory.tools)
            fields["tools"] = toolsets.index(trajectory.tools)
        if trajectory.artefacts:
            fields["artefacts"] = [
                {
                    name: value
                    for name, value in asdict(each).items()
                    if value is not None and value is not False
                }
                for each in trajectory.artefacts
            ]
        fields["rows"] = list(range(first_row, first_row + len(trajectory.rows)))
        fields["prompt"] = list(range(len(trajectory.prompt)))
        opening = [message.to_openai() for message in trajectory.prompt]
        sorted_text = orjson.dumps(opening, option=orjson.OPT_SORT_KEYS)
        fields["prompt_hash"] = hashlib.sha256(sorted_text).hexdigest()[:32]
        fields["turns"] = _turns(trajectory)
        fields["advantages"] = list(advantages)
        # The last row has all text, unless the model saw another context in the row's last turn.
        last = [turn for turn in trajectory.turns if turn.span.row == len(trajectory.rows) - 1][-1:]
        if not trajectory.rows or any(turn.context is not None for turn in last):
            fields["messages"] = [message.to_openai() for message in trajectory.messages]
        first_row += len(trajectory.rows)
        dumped.append(fields)
    return dumped


def _drop_empty(fields: dict[str, Any], names: Sequence[str]) -> None:
    for name in names:
        if not fields[name]:
            del fields[name]


def _short(dumped: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in each.items() if name not in _DEFAULTS or value != _DEFAULTS[name]}
        for each in dumped
    ]


def _turns(trajectory: Trajectory) -> list[dict[str, Any]]:
    dumped: list[dict[str, Any]] = []
    index = len(trajectory.prompt)
    for turn in trajectory.turns:
        bare = turn if turn.context is None else replace(turn, context=None)
        fields = _TURN.dump_python(bare, mode="json", exclude=_TEXT, warnings=False)
        # Kept stretches are written as `start` and `end`, inserted messages whole.
        context = turn.context and _CONTEXT.dump_python(turn.context, mode="json", warnings=False)
        fields["context"] = None if context is None else list(context)
        answered = index + 1 + len(turn.tool_results)
        for at, result in enumerate(fields["tool_results"], start=index + 1):
            del result["content"], result["call_id"]
            result["message"] = at
        end = answered + len(turn.replies)
        fields |= {"message": index, "replies": list(range(answered, end))}
        for name in ("noted", "condensed", "thread", "without_tools", "weight_spans", "usage", "clock"):
            if not fields[name]:
                del fields[name]
        if turn.value is None:
            del fields["value"]
        if turn.clock is not None and not turn.clock.unfinished_before:
            del fields["clock"]["unfinished_before"]
        if any(call.status != "ok" or call.span is not None for call in turn.message.tool_calls):
            fields["calls"] = [{"status": call.status, "span": call.span} for call in turn.message.tool_calls]
        dumped.append(fields)
        index = end
    return dumped


def _restore(fields: dict[str, Any], rows: Sequence[TokenRow] | None, line: LineFields) -> Trajectory:
    own_rows: list[int] = fields["rows"]
    token_rows = () if rows is None else tuple(rows[index] for index in own_rows)
    text = fields["messages"] if "messages" in fields else line.messages[own_rows[-1]]
    spoken = dict(enumerate(map(_message, text)))
    prompt = tuple(spoken[index] for index in fields["prompt"])
    toolset: int | None = fields.get("tools")
    tools = () if toolset is None else line.toolsets[toolset]
    own: dict[str, Any] = {"tools": tools, "prompt": (), "turns": (), "rows": (), "contents": {}}
    bare = _TRAJECTORY.validate_python({**fields, **own})
    turns = tuple(_turn(turn, spoken) for turn in fields["turns"])
    rewards = None if bare.rewards is None else bare.rewards.turns
    for what, values in (("advantages", fields["advantages"]), ("turn rewards", rewards)):
        if values is not None and len(values) != len(turns):
            raise ValueError(f"{len(values)} {what} for the {len(turns)} turns of sibling {bare.sibling}")
    ends = dict.fromkeys(range(len(own_rows)), 0)
    for index, turn in enumerate(turns if own_rows else ()):
        row, start, end = turn.span.row, turn.span.start, turn.span.end
        size = len(token_rows[row].token_ids) if 0 <= row < len(token_rows) else end
        if turn.index != index or not ends.get(row, math.inf) <= start <= end <= size:
            raise ValueError(f"turn {index} of sibling {bare.sibling}: index {turn.index}, {turn.span}")
        ends[row] = end
    return replace(bare, prompt=prompt, turns=turns, rows=token_rows)


def _turn(fields: dict[str, Any], spoken: Mapping[int, Message]) -> Turn:
    results: list[dict[str, Any]] = []
    for result in fields["tool_results"]:
        text = spoken[result["message"]]
        results.append({**result, "content": text.content, "call_id": text.tool_call_id})
    message, context = spoken[fields["message"]], fields["context"]
    if "calls" in fields:  # the parser's findings, which OpenAI's shape has no field for
        read: list[dict[str, Any]] = fields["calls"]
        calls = [
            replace(call, status=each["status"], span=None if each["span"] is None else tuple(each["span"]))
            for call, each in zip(message.tool_calls, read, strict=True)
        ]
        message = replace(message, tool_calls=tuple(calls))
    restored = {
        "tool_results": results,
        "message": message,
        "replies": tuple(spoken[index] for index in fields["replies"]),
        "context": None if context is None else _CONTEXT.validate_python(context),
    }
    return _TURN.validate_python({**fields, **restored})


def _message(fields: dict[str, Any]) -> Message:
    calls = [{"id": call["id"], **call["function"]} for call in fields.get("tool_calls", ())]
    reasoning = fields.get("reasoning_content")
    return _MESSAGE.validate_python({**fields, "reasoning": reasoning, "tool_calls": calls})
