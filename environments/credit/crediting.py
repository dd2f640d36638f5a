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
    ALONE,
    advantages_of,
    describe,
    recorded_terms,
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
    failure by `GroupRefused` fails the group. Branches do not count for `min_trajectories`.
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
        group = _drop(group, missing, "RewardError", what)
    elif missing and stated_outcome is not None:
        outcome, stated = float(stated_outcome), list(group.trajectories)
        for index in missing:
            if (rewards := stated[index].rewards) is not None:
                with_outcome = replace(
                    rewards,
                    outcome=(rewards.outcome or 0.0) + outcome,
                    score=(rewards.score or 0.0) + outcome,
                    outcome_components={**rewards.outcome_parts, _STATED: outcome},
                )
                stated[index] = replace(stated[index], rewards=with_outcome)
        group = replace(group, trajectories=tuple(stated))
    trunks = [each.sibling for each in group.trajectories if each.trunk is None]
    left, size = len(trunks), len(trunks) + sum(each.trunk is None for each in group.failures)
    if left < len(group.trajectories):
        # Branches without their trunk go, too, since it alone trains the turns that they share.
        among = {None, *trunks}
        orphans = [index for index, each in enumerate(group.trajectories) if each.trunk not in among]
        group = _drop(group, orphans, "RolloutError", "the rollout that it branches from was dropped")
    needed = min(rules.min_trajectories, size)
    if left < needed:
        return group, f"{left} of {size} rollouts survived, at least {needed} are needed"
    return group, None


def _drop(group: TrajectoryGroup, indices: Sequence[int], error: str, why: str) -> TrajectoryGroup:
    dropped = [drop_sibling(group.trajectories[index], error, why) for index in indices]
    failures = sorted((*group.failures, *dropped), key=lambda failure: failure.sibling)
    others = tuple(each for index, each in enumerate(group.trajectories) if index not in indices)
    return replace(group, trajectories=others, failures=tuple(failures))


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
    if lacks_outcome and any(own and rewards[at].outcome is not None for at, own in enumerate(is_own)):
        return "no outcome beside siblings with one", lacks_outcome
    unscored = [
        index for index, each in enumerate(rewards) if each.score is None or (is_stated and each.is_unscored)
    ]
    if 0 < len(unscored) < len(rewards):
        return "nothing scored beside siblings with rewards", unscored
    lacks_part = [index for index, each in enumerate(rewards) if each.group is None and is_own[index]]
    has_parts = any(each.group is not None for each in rewards)
    return "no part from score_group beside siblings with one", lacks_part if has_parts else []


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
    done: list[CreditedGroup] = []
    every: list[list[Term] | None] = []
    for group, policy in groups:
        group, reason = comparable(group, rules)
        terms: list[Term] | None = None
        if reason is None:
            compute = partial(terms_of, estimator, group, preset=preset, **given)
            terms, reason = _try(estimator, group, compute)
        done.append(
            CreditedGroup(
                group=group,
                advantages=tuple((0.0,) * len(each.turns) for each in group.trajectories),
                policy=policy,
                estimator=estimator,
                estimator_params=used,
                status="failed" if reason else "alone" if spec.is_alone(group, used) else "no_credit",
                reason=reason,
            )
        )
        every.append(terms)
    left = [index for index, terms in enumerate(every) if terms is not None]
    compared = [done[index].group for index in left]
    of_step = partial(spec.of_step, [every[index] or [] for index in left], compared, {**used, **given})
    of_left, reason = _try(estimator, compared[0], of_step) if left else ([], None)
    for position, index in enumerate(left):
        terms = None if of_left is None else of_left[position]
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
    status, reason = bare.status, None
    if any(map(any, advantages)):
        status = "ok"
    elif group.stale is not None:
        reason = group.stale
    elif all(each.rewards is None or each.rewards.is_unscored for each in group.trajectories):
        reason = UNSCORED
    elif not any(turn.trained for each in group.trajectories for turn in each.turns):
        reason = UNTRAINED
    else:
        reason = ALONE if status == "alone" else NO_CREDIT
    rows = tuple(map(tuple, advantages))
    return replace(bare, advantages=rows, status=status, reason=reason, turns_without_peer=alone)


def _try(
    estimator: str, group: TrajectoryGroup, compute: Callable[[], Result]
) -> tuple[Result | None, str | None]:
    try:
        return compute(), None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  # an estimator may be anybody's code
        if isinstance(error, TurnwiseError):
            text = str(error)
        else:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{estimator}, {Path(frame.filename).name}:{frame.lineno}: "
            text += "".join(traceback.format_exception_only(error))
        reason = " ".join(text.split())[:_LONGEST_REASON].encode(errors="backslashreplace").decode()
        logger.warning("item %s cannot be credited: %s", group.item_id, reason)
        return None, reason


def without_peer_of(done: CreditedGroup) -> list[list[bool]] | None:
    if not done.turns_without_peer:
        return [[False] * len(trajectory.acts) for trajectory in done.group.trajectories]
    try:
        return without_peer(recorded_terms(done), done.group)
    except Exception:  # noqa: BLE001  # an estimator may be anybody's code, and of a record unknown here
        return None


def recorded_params(
    estimator: str, *, preset: str | None = None, params: Mapping[str, object] | None = None
) -> dict[str, object]:
    """Return the parameters to record, with preset and settings applied."""
    kept = {p.name for p in describe(estimator).parameters if p.kind != "per_turn"}
    used = resolve(estimator, preset=preset, **(params or {}))
    return {name: value for name, value in used.items() if name in kept}
