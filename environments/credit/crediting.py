"""A group together with its advantages: what is recorded, delivered and credited again."""

from collections.abc import Mapping

from environments.credit.estimator_registry import describe, estimate, resolve
from environments.trajectory import CreditedGroup, TrajectoryGroup

NO_CREDIT = "every advantage is zero"


def credited(
    group: TrajectoryGroup,
    estimator: str,
    *,
    policy: str,
    preset: str | None = None,
    params: Mapping[str, object] | None = None,
    min_trajectories: int = 0,
) -> CreditedGroup:
    """The group with its advantages and every parameter they were computed with.

    A group of several siblings of which fewer than `min_trajectories` survived is `failed`: its advantages
    are zero.

    Raises:
        CreditError: as for `estimate`.
    """
    given = params or {}
    lost = _too_few(group, min_trajectories)
    if lost is None:
        advantages = tuple(tuple(row) for row in estimate(estimator, group, preset=preset, **given))
        learns = any(value for row in advantages for value in row)
    else:
        advantages = tuple((0.0,) * len(trajectory.turns) for trajectory in group.trajectories)
        learns = False
    return CreditedGroup(
        group=group,
        advantages=advantages,
        policy=policy,
        estimator=estimator,
        estimator_params=recorded_params(estimator, preset=preset, params=given),
        status="failed" if lost is not None else "ok" if learns else "no_credit",
        reason=lost or (None if learns else NO_CREDIT),
    )


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


def _too_few(group: TrajectoryGroup, min_trajectories: int) -> str | None:
    size = len(group.trajectories) + len(group.failures)
    needed = min(min_trajectories, size)
    if len(group.trajectories) >= needed:
        return None
    return f"{len(group.trajectories)} of {size} rollouts survived, at least {needed} are needed"
