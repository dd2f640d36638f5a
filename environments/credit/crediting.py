"""Credit of whole groups: which siblings can be compared, and a group with its advantages."""

import logging
import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

from environments.credit.estimator_registry import (
    advantages_of,
    describe,
    resolve,
    terms_of,
    without_peer,
)
from environments.credit.terms import Term
from environments.trajectory import (
    LARGEST_REWARD,
    CreditedGroup,
    MissingOutcome,
    Rewards,
    Trajectory,
    TrajectoryGroup,
    drop_sibling,
)
from tools.errors import ConfigError, TurnwiseError

NO_CREDIT = "every advantage is zero"
UNSCORED = "nothing was scored"
UNTRAINED = "no turn is trained"
ALONE = "no other session has its opening"

_LONGEST_REASON = 1000
logger = logging.getLogger(__name__)
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRules:
    min_trajectories: int = 0
    missing_outcome: MissingOutcome | None = None
    """If None, a missing outcome refuses its group, and an unscored 0 counts as a score."""


ANY_GROUP = GroupRules()
_STATED = "missing_outcome"
"""Component of a stated outcome, so that repeated credit stays the same."""


def comparable(group: TrajectoryGroup, rules: GroupRules) -> tuple[TrajectoryGroup, str | None]:
    """Return the group with comparable siblings, and a reason if it fails.

    A trajectory must not lack what other siblings have: an outcome; without outcomes, any score (with
    `missing_outcome` stated, an unscored 0 does not count); or a part from `score_group`. Otherwise it gets
    the stated outcome, or becomes a failure. The floor of a rollout that the agent broke lacks no part. A
    failure by `GroupRefused` fails the group.
    """
    if refusal := next((failure for failure in group.failures if failure.refuses_group), None):
        return group, f"sibling {refusal.sibling}: {refusal.error}"
    if group.error is not None:
        return group, group.error
    stated_outcome = rules.missing_outcome
    what, missing = _missing(group.trajectories, is_stated=stated_outcome is not None)
    if missing and (stated_outcome is None or stated_outcome == "refuse"):
        names = ", ".join(str(group.trajectories[index].sibling) for index in missing)
        return group, f"{what}: siblings {names}; missing_outcome says what is to count, drop or a number"
    if missing and stated_outcome == "drop":
        without = [drop_sibling(group.trajectories[index], "RewardError", what) for index in missing]
        failures = sorted((*group.failures, *without), key=lambda failure: failure.sibling)
        others = tuple(each for index, each in enumerate(group.trajectories) if index not in missing)
        group = replace(group, trajectories=others, failures=tuple(failures))
    elif missing and stated_outcome is not None:
        stated = list(group.trajectories)
        for index in missing:
            stated[index] = _with_outcome(stated[index], float(stated_outcome))
        group = replace(group, trajectories=tuple(stated))
    left, size = len(group.trajectories), len(group.trajectories) + len(group.failures)
    needed = min(rules.min_trajectories, size)
    if left < needed:
        return group, f"{left} of {size} rollouts survived, at least {needed} are needed"
    return group, None


def missing_outcome_of(value: object, name: str) -> MissingOutcome:
    """Return the checked value of the setting `name`, or raise ConfigError."""
    if value in ("refuse", "drop"):
        return cast("MissingOutcome", value)
    number = math.nan
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        with suppress(ValueError, OverflowError):
            number = float(value)
    if not abs(number) <= LARGEST_REWARD:
        raise ConfigError(f"{name} is {value!r:.100}; choose refuse, drop or a finite number")
    return number


def _missing(trajectories: Sequence[Trajectory], *, is_stated: bool) -> tuple[str, list[int]]:
    """Return what is missing, and the indices of the trajectories that lack it."""
    rewards = [each.rewards or Rewards(score=None) for each in trajectories]
    is_own = [
        each.agent_caused is None and _STATED not in own.outcome_components
        for each, own in zip(trajectories, rewards, strict=True)
    ]
    lacks_outcome = [index for index, each in enumerate(rewards) if each.outcome is None]
    if lacks_outcome and any(
        own and each.outcome is not None for own, each in zip(is_own, rewards, strict=True)
    ):
        return "no outcome beside siblings with one", lacks_outcome
    unscored = [
        index for index, each in enumerate(rewards) if each.score is None or (is_stated and each.is_unscored)
    ]
    if 0 < len(unscored) < len(rewards):
        return "nothing scored beside siblings with rewards", unscored
    lacks_part = [index for index, each in enumerate(rewards) if each.group is None and is_own[index]]
    has_parts = any(each.group is not None for each in rewards)
    return "no part from score_group beside siblings with one", lacks_part if has_parts else []


def _with_outcome(trajectory: Trajectory, outcome: float) -> Trajectory:
    rewards = trajectory.rewards
    if rewards is None:
        return trajectory
    rewards = replace(
        rewards,
        outcome=(rewards.outcome or 0.0) + outcome,
        score=(rewards.score or 0.0) + outcome,
        outcome_components={**rewards.outcome_parts, _STATED: outcome},
    )
    return replace(trajectory, rewards=rewards)


# --- credit ------------------------------------------------------------------------------------------


def credited(
    group: TrajectoryGroup,
    estimator: str,
    *,
    policy: str,
    preset: str | None = None,
    params: Mapping[str, object] | None = None,
    rules: GroupRules = ANY_GROUP,
) -> CreditedGroup:
    """Return the group with its advantages, failed if siblings cannot be compared or the estimator raises.

    A logged session without peers gets no advantage, unless `params` set `singleton`, or `baseline` to
    `none`.

    Raises:
        CreditError: if `credited_batch` raises it, or the estimator compares all groups of a step.
    """
    describe(estimator).refuse_alone()
    return _credit_all([(group, policy)], estimator, preset, params or {}, rules)[0]


def credited_batch(
    groups: Sequence[CreditedGroup],
    estimator: str,
    *,
    preset: str | None = None,
    params: Mapping[str, object] | None = None,
    rules: GroupRules = ANY_GROUP,
) -> list[CreditedGroup]:
    """Return all groups of one training step with new advantages, in order; see `credited`.

    Estimators such as `reinforce_pp` compare the groups; others credit each separately.

    Raises:
        CreditError: if the estimator, preset or a parameter is unknown, or a value is not possible.
    """
    return _credit_all([(each.group, each.policy) for each in groups], estimator, preset, params or {}, rules)


def _credit_all(
    groups: Sequence[tuple[TrajectoryGroup, str]],
    estimator: str,
    preset: str | None,
    given: Mapping[str, object],
    rules: GroupRules,
) -> list[CreditedGroup]:
    used, spec = recorded_params(estimator, preset=preset, params=given), describe(estimator)
    compares = given.get("baseline") != "none" and "singleton" not in given
    done: list[CreditedGroup] = []
    alone: list[list[Term] | None] = []
    for group, policy in groups:
        group, reason = comparable(group, rules)
        is_lone = len(group.trajectories) == 1 and group.trajectories[0].session_id is not None
        apart = ALONE if is_lone and compares else None
        terms: list[Term] | None = None
        if reason is None and apart is None:
            terms, reason = _try(
                estimator, group, partial(terms_of, estimator, group, preset=preset, **given)
            )
        done.append(
            CreditedGroup(
                group=group,
                advantages=tuple((0.0,) * len(each.turns) for each in group.trajectories),
                policy=policy,
                estimator=estimator,
                estimator_params=used,
                status="no_credit" if reason is None else "failed",
                reason=reason or apart,
            )
        )
        alone.append(terms)
    left = [index for index, terms in enumerate(alone) if terms is not None]
    compared = [done[index].group for index in left]
    of_step = partial(spec.of_step, [alone[index] or [] for index in left], compared, {**used, **given})
    every, reason = _try(estimator, compared[0], of_step) if left else ([], None)
    for position, index in enumerate(left):
        terms = None if every is None else every[position]
        done[index] = _with_credit(done[index], terms, reason)
    return done


def _with_credit(bare: CreditedGroup, terms: list[Term] | None, reason: str | None) -> CreditedGroup:
    group, name, numbers = bare.group, bare.estimator, None
    if terms is not None:
        numbers, reason = _try(
            name,
            group,
            lambda: (advantages_of(name, terms, group), sum(map(sum, without_peer(terms, group)))),
        )
    if numbers is None:
        return replace(bare, status="failed", reason=reason)
    advantages, alone = numbers
    learns = any(map(any, advantages))
    return replace(
        bare,
        advantages=tuple(map(tuple, advantages)),
        status="ok" if learns else "no_credit",
        reason=None if learns else _why_not(group),
        turns_without_peer=alone,
    )


def _try(
    estimator: str, group: TrajectoryGroup, compute: Callable[[], Result]
) -> tuple[Result | None, str | None]:
    try:
        return compute(), None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  # an estimator may be anybody's code
        reason = _describe_error(estimator, error)
        logger.warning("item %s cannot be credited: %s", group.item_id, reason)
        return None, reason


def without_peer_of(done: CreditedGroup) -> list[list[bool]] | None:
    if not done.turns_without_peer:
        return [[False] * len(trajectory.acts) for trajectory in done.group.trajectories]
    try:
        return without_peer(terms_of(done.estimator, done.group, **done.estimator_params), done.group)
    except Exception:  # noqa: BLE001  # an estimator may be anybody's code, and of a record unknown here
        return None


def recorded_params(
    estimator: str, *, preset: str | None = None, params: Mapping[str, object] | None = None
) -> dict[str, object]:
    """Return the parameters to record, with preset and settings applied."""
    kept = {p.name for p in describe(estimator).parameters if p.kind != "per_turn"}
    used = resolve(estimator, preset=preset, **(params or {}))
    return {name: value for name, value in used.items() if name in kept}


def _why_not(group: TrajectoryGroup) -> str:
    if group.stale is not None:
        return group.stale
    if all(each.rewards is None or each.rewards.is_unscored for each in group.trajectories):
        return UNSCORED
    is_trained = any(turn.trained for trajectory in group.trajectories for turn in trajectory.turns)
    return NO_CREDIT if is_trained else UNTRAINED


def _describe_error(estimator: str, error: BaseException) -> str:
    if isinstance(error, TurnwiseError):
        text = str(error)
    else:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{estimator}, {Path(frame.filename).name}:{frame.lineno}: "
        text += "".join(traceback.format_exception_only(error))
    return " ".join(text.split())[:_LONGEST_REASON].encode(errors="backslashreplace").decode()
