"""One group as one line of the rollout JSONL, and the line as an equal group again."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from environments.trajectory import CreditedGroup, Failure, TokenRow, Trajectory, TrajectoryGroup
from environments.wire.columns import list_scores
from tools.errors import RecordError

SCHEMA = "turnwise.group/1"


class GroupLine(BaseModel):
    """What of a line is needed to read a group back; the other columns are for Atropos' tools."""

    model_config = ConfigDict(extra="ignore")

    schema_: Literal["turnwise.group/1"]
    group_id: str
    env: str
    item_id: str
    epoch: int
    status: Literal["ok", "no_credit", "failed"]
    reason: str | None
    policy: str
    estimator: str
    estimator_params: dict[str, Any]
    tokens: list[list[int]]
    inference_logprobs: list[list[float]] | None
    row_logprobs: list[list[float] | None] | None = None
    trajectories: list[dict[str, Any]]
    failures: list[Failure]


def encode_group(credited: CreditedGroup) -> bytes:
    """A group as one line, ending in a newline."""
    group = credited.group
    columns = list_scores(credited)
    if columns["inference_logprobs"] is None:
        columns["row_logprobs"] = [
            None if row.logprobs is None else list(row.logprobs) for t in group.trajectories for row in t.rows
        ]
    line = {
        "schema": SCHEMA,
        "group_id": group.group_id,
        "env": group.env,
        "item_id": group.item_id,
        "epoch": group.epoch,
        "status": credited.status,
        "reason": credited.reason,
        "policy": credited.policy,
        "estimator": credited.estimator,
        "estimator_params": dict(credited.estimator_params),
        **columns,
        "trajectories": _trajectories(credited),
        "failures": _FAILURES.dump_python(group.failures, mode="json", exclude=_LATER),
    }
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)


def decode_group(line: bytes, path: Path, number: int) -> CreditedGroup:
    """One line as the value it was written from.

    Raises:
        RecordError: malformed; it names the file, the line and the first field that is wrong.
    """
    fields = parse_line(line, path, number)
    try:
        read = GroupLine.model_validate({**fields, "schema_": fields["schema"]})
        trajectories, advantages = _restore(read)
    except (ValidationError, LookupError, TypeError, AttributeError) as error:
        raise RecordError(f"{path}, line {number}: not a {SCHEMA} line: {_first_line(error)}") from error
    return CreditedGroup(
        group=TrajectoryGroup(
            group_id=read.group_id,
            env=read.env,
            item_id=read.item_id,
            epoch=read.epoch,
            trajectories=trajectories,
            failures=tuple(read.failures),
        ),
        advantages=advantages,
        policy=read.policy,
        estimator=read.estimator,
        estimator_params=read.estimator_params,
        status=read.status,
        reason=read.reason,
    )


def parse_line(line: bytes, path: Path, number: int) -> dict[str, Any]:
    """A line's fields, of which only the schema is checked.

    Raises:
        RecordError: not JSON, or not a line of the record.
    """
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise RecordError(f"{path}, line {number}: not JSON ({error})") from error
    if not isinstance(fields, dict) or fields.get("schema") != SCHEMA:  # pyright: ignore[reportUnknownMemberType]  # any JSON may stand here
        raise RecordError(
            f"{path}, line {number}: not a {SCHEMA} line; this file was written by something else"
        )
    return fields  # pyright: ignore[reportUnknownVariableType]  # checked field by field where it is used


_TRAJECTORY = TypeAdapter(Trajectory)
_FAILURES = TypeAdapter(tuple[Failure, ...])
_LATER = {"__all__": {"error_class", "where"}}
"""Fields that the first schema does not have."""


def _trajectories(credited: CreditedGroup) -> list[dict[str, Any]]:
    """The trajectories; their token rows are kept once, in the columns, and named here by position."""
    dumped: list[dict[str, Any]] = []
    first = 0
    for trajectory, advantages in zip(credited.group.trajectories, credited.advantages, strict=True):
        fields = _TRAJECTORY.dump_python(replace(trajectory, rows=()), mode="json")
        fields["turns"] = [_renamed(turn, "anchor", "state") for turn in fields["turns"]]
        fields["rows"] = list(range(first, first + len(trajectory.rows)))
        fields["advantages"] = list(advantages)
        first += len(trajectory.rows)
        dumped.append(fields)
    return dumped


def _restore(read: GroupLine) -> tuple[tuple[Trajectory, ...], tuple[tuple[float, ...], ...]]:
    logprobs = read.inference_logprobs or read.row_logprobs or [None] * len(read.tokens)
    rows = [
        TokenRow(token_ids=tuple(ids), logprobs=None if values is None else tuple(values))
        for ids, values in zip(read.tokens, logprobs, strict=True)
    ]
    trajectories: list[Trajectory] = []
    advantages: list[tuple[float, ...]] = []
    for fields in read.trajectories:
        turns = [_renamed(turn, "state", "anchor") for turn in fields["turns"]]
        bare = _TRAJECTORY.validate_python({**fields, "turns": turns, "rows": ()})
        positions: list[int] = fields["rows"]
        trajectories.append(replace(bare, rows=tuple(rows[position] for position in positions)))
        advantages.append(tuple(float(value) for value in fields["advantages"]))
    return tuple(trajectories), tuple(advantages)


def _renamed(fields: dict[str, Any], name: str, other: str) -> dict[str, Any]:
    """A turn's fields with one under another name: what we call `anchor` is `state` in lines of schema 1."""
    return {other if key == name else key: value for key, value in fields.items()}


def _first_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    return f"{type(error).__name__}: {error}"
