"""A group together with its advantages: what is recorded, delivered and credited again."""

import logging
import traceback
from collections.abc import Mapping
from pathlib import Path

from environments.credit.comparable import ANY_GROUP, GroupRules, comparable
from environments.credit.estimator_registry import (
    Advantages,
    describe,
    estimate,
    resolve,
    without_peer,
)
from environments.credit.scored import trained_turns
from environments.trajectory import CreditedGroup, TrajectoryGroup
from tools.errors import TurnwiseError

NO_CREDIT = "every advantage is zero"
UNSCORED = "nothing was scored"
UNTRAINED = "no turn is trained"
ALONE = "no other session has its opening"

_LONGEST_REASON = 1000
logger = logging.getLogger(__name__)


def credited(
    group: TrajectoryGroup,
    estimator: str,
    *,
    policy: str,
    preset: str | None = None,
    params: Mapping[str, object] | None = None,
    rules: GroupRules = ANY_GROUP,
) -> CreditedGroup:
    """The group with its advantages, none where it is stale, and every parameter they were computed with.

    A group is `failed`, and its advantages are zero, when its siblings cannot be compared (see `comparable`)
    and when the estimator cannot compute with its numbers, whatever it raises. A logged session without a
    peer has no advantage, unless `params` say that nothing is to be compared: `baseline` is `none`, or
    `singleton` is given.

    Raises:
        CreditError: no such estimator, preset or parameter, or a value that it cannot have.
    """
    given = params or {}
    used = recorded_params(estimator, preset=preset, params=given)
    group, reason = comparable(group, rules)
    advantages: Advantages | None = None
    alone = 0
    lone = _is_lone_session(group) and given.get("baseline") != "none" and "singleton" not in given
    apart = group.stale or (ALONE if lone else None)
    if reason is None and apart is None:
        try:
            advantages = estimate(estimator, group, preset=preset, **given)
            alone = sum(map(sum, without_peer(estimator, group, preset=preset, **given)))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  # an estimator may be anybody's code
            reason = _in_words(estimator, error)
            logger.warning("item %s cannot be credited: %s", group.item_id, reason)
    learns = advantages is not None and any(value for row in advantages for value in row)
    return CreditedGroup(
        group=group,
        advantages=tuple(map(tuple, advantages or _zeros(group))),
        policy=policy,
        estimator=estimator,
        estimator_params=used,
        status="failed" if reason is not None else "ok" if learns else "no_credit",
        reason=reason or (None if learns else apart or _why_not(group)),
        turns_without_peer=alone,
    )


def without_peer_of(done: CreditedGroup) -> list[list[bool]] | None:
    """Of each act, whether no sibling had one to compare it with; `None`: nobody knows any more."""
    if not done.turns_without_peer:
        return [[False] * len(trajectory.acts) for trajectory in done.group.trajectories]
    try:
        return without_peer(done.estimator, done.group, **done.estimator_params)
    except Exception:  # noqa: BLE001  # an estimator may be anybody's code, and of a record unknown here
        return None


def recorded_params(
    estimator: str, *, preset: str | None = None, params: Mapping[str, object] | None = None
) -> dict[str, object]:
    """Every parameter that a record names, with the value it has after preset and settings.

    Raises:
        CreditError: no such estimator, preset or parameter, or a value that it cannot have.
    """
    kept = {p.name for p in describe(estimator).parameters if p.kind != "per_turn"}
    used = resolve(estimator, preset=preset, **(params or {}))
    return {name: value for name, value in used.items() if name in kept}


def _is_lone_session(group: TrajectoryGroup) -> bool:
    """Whether it is one that was logged, with nobody to be compared with, which nobody chose it to be."""
    return len(group.trajectories) == 1 and group.trajectories[0].session_id is not None


def _why_not(group: TrajectoryGroup) -> str:
    """Why nothing is learned from a group whose siblings can be compared."""
    if all(trajectory.score is None for trajectory in group.trajectories):
        return UNSCORED
    return NO_CREDIT if trained_turns(group) else UNTRAINED


def _zeros(group: TrajectoryGroup) -> Advantages:
    return [[0.0] * len(trajectory.turns) for trajectory in group.trajectories]


def _in_words(estimator: str, error: BaseException) -> str:
    """One line that any file can hold, whatever the error says; of an error of others' also its place."""
    if isinstance(error, TurnwiseError):
        text = str(error)
    else:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{estimator}, {Path(frame.filename).name}:{frame.lineno}: "
        text += "".join(traceback.format_exception_only(error))
    return " ".join(text.split())[:_LONGEST_REASON].encode(errors="backslashreplace").decode()
