"""A group that no line can hold, as a failed one that says why: it ends no run."""

from collections.abc import Sequence
from dataclasses import replace

from environments.record.group_line import encode_group
from environments.trajectory import CreditedGroup, Failure, Trajectory, TrajectoryGroup
from tools.errors import RecordError

MAX_REASON_CHARS = 500


def failed_instead(credited: CreditedGroup, error: RecordError) -> CreditedGroup:
    """The group as it can be recorded: failed, without the siblings that JSON cannot hold."""
    group = credited.group
    problems = [_problem(trajectory) for trajectory in group.trajectories]
    kept = [each for each, problem in zip(group.trajectories, problems, strict=True) if problem is None]
    lost = [
        _lost(each, index, problem)
        for index, (each, problem) in enumerate(zip(group.trajectories, problems, strict=True))
        if problem is not None
    ]
    failed = _failed(credited, error, replace(group, failures=(*group.failures, *lost)), kept)
    if _refusal(failed) is None:
        return failed
    # What is wrong is not in a sibling alone.
    every = [_lost(each, index, error) for index, each in enumerate(group.trajectories)]
    bare = TrajectoryGroup(
        group_id=_text(group.group_id),
        env=_text(group.env),
        item_id=_text(group.item_id),
        epoch=group.epoch,
        item_hash=group.item_hash,
        fingerprint=group.fingerprint,
        trajectories=(),
        failures=tuple(every),
    )
    return replace(
        _failed(credited, error, bare, ()),
        policy=_text(credited.policy),
        estimator=_text(credited.estimator),
        estimator_params={},
    )


def _failed(
    credited: CreditedGroup, error: RecordError, group: TrajectoryGroup, kept: Sequence[Trajectory]
) -> CreditedGroup:
    return replace(
        credited,
        group=replace(group, trajectories=tuple(kept)),
        advantages=tuple((0.0,) * len(each.turns) for each in kept),
        status="failed",
        reason=f"cannot be recorded: {_text(error)}",
        turns_without_peer=0,
    )


def _problem(trajectory: Trajectory) -> RecordError | None:
    """Why this sibling cannot be recorded, whatever else is in its group."""
    alone = TrajectoryGroup(trajectories=(trajectory,))
    return _refusal(
        CreditedGroup(group=alone, advantages=((0.0,) * len(trajectory.turns),), policy="", estimator="")
    )


def _refusal(credited: CreditedGroup) -> RecordError | None:
    try:
        encode_group(credited)
    except RecordError as error:
        return error
    return None


def _lost(trajectory: Trajectory, index: int, problem: RecordError) -> Failure:
    return Failure(
        sibling=index,
        stop_reason=None,
        error=f"RecordError: cannot be recorded: {_text(problem)}",
        traceback="",
        turns=len(trajectory.turns),
        error_class="RecordError",
    )


def _text(value: object) -> str:
    """Text that any record can hold: it may quote what could not be encoded."""
    return str(value).encode("utf-8", "backslashreplace").decode()[:MAX_REASON_CHARS]
