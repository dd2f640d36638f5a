"""The first schema of the record, `turnwise.group/1`: read for ever, written no more."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter

from environments.trajectory import CreditedGroup, Failure, TokenRow, Trajectory, TrajectoryGroup

SCHEMA = "turnwise.group/1"
NO_ROWS: Mapping[str, Any] = {"tokens": [], "inference_logprobs": None, "row_logprobs": None}
"""In the place of the columns that token rows are read from."""


class GroupLine(BaseModel):
    """What of a line is needed to read a group back; the other columns are for Atropos' tools."""

    # Built when a line is read: that takes longer than the rest of this package's imports.
    model_config = ConfigDict(extra="ignore", defer_build=True)

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
    failures: tuple[Failure, ...]

    def rows(self) -> list[TokenRow]:
        """The token rows of all trajectories, from the columns."""
        logprobs = self.inference_logprobs or self.row_logprobs or [None] * len(self.tokens)
        return [
            TokenRow(token_ids=tuple(ids), logprobs=None if values is None else tuple(values))
            for ids, values in zip(self.tokens, logprobs, strict=True)
        ]

    def credited(self, group: TrajectoryGroup, *, turns_without_peer: int = 0) -> CreditedGroup:
        """A group with the credit of this line."""
        return CreditedGroup(
            group=group,
            advantages=tuple(
                tuple(float(value) for value in fields["advantages"]) for fields in self.trajectories
            ),
            policy=self.policy,
            estimator=self.estimator,
            estimator_params=self.estimator_params,
            status=self.status,
            reason=self.reason,
            turns_without_peer=turns_without_peer,
        )


def read(fields: dict[str, Any], *, rows: bool = True) -> CreditedGroup:
    """The group of a line; without `rows` its trajectories have none.

    Raises:
        ValueError, LookupError, TypeError, AttributeError: a field is missing or wrong.
    """
    line = GroupLine.model_validate(fields)
    token_rows = line.rows() if rows else None
    group = TrajectoryGroup(
        group_id=line.group_id,
        env=line.env,
        item_id=line.item_id,
        epoch=line.epoch,
        trajectories=tuple(_trajectory(fields, token_rows) for fields in line.trajectories),
        failures=line.failures,
    )
    return line.credited(group)


@cache
def _adapter() -> TypeAdapter[Trajectory]:
    return TypeAdapter(Trajectory)


def _trajectory(fields: dict[str, Any], rows: list[TokenRow] | None) -> Trajectory:
    # What is an anchor was called the state of a turn.
    turns = [
        {"anchor" if name == "state" else name: value for name, value in turn.items()}
        for turn in fields["turns"]
    ]
    bare = _adapter().validate_python({**fields, "turns": turns, "rows": ()})
    own_rows: list[int] = fields["rows"]
    return bare if rows is None else replace(bare, rows=tuple(rows[index] for index in own_rows))
