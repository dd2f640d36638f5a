"""How much is tried: as many seeds and steps as fit into the seconds that there are."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tools.errors import ConfigError

GROUPS_A_STEP = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPlan:
    """What each estimator gets."""

    seeds: int
    steps: int
    items: int
    """That are played again and again: by the reference, at the start, in turn while learning, at the end."""

    def groups(self, arms: int) -> int:
        """To roll out for this many estimators."""
        measured = self.items * (1 + self.seeds + arms * self.seeds)
        return measured + GROUPS_A_STEP * arms * self.seeds * self.steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the user wants of a plan; `None`: what fits."""

    seconds: float
    seeds: int | None = None
    steps: int | None = None


_PLANS = tuple(
    TrialPlan(seeds=seeds, steps=steps, items=items)
    for seeds, steps, items in ((3, 25, 8), (3, 20, 8), (3, 15, 6), (2, 15, 6), (2, 10, 4), (2, 6, 4))
)
_HOPE = 1.4
"""First groups are slower than later ones; where they are not, the last steps are left out."""
FEWEST_ITEMS = _PLANS[-1].items


def plan_within(asked: Asked, *, group_s: float, arms: int, items: int) -> TrialPlan:
    """The largest plan that takes no longer than asked.

    Args:
        asked: seconds, and what is fixed.
        group_s: seconds that a group takes here.
        arms: how many estimators.
        items: how many there are.

    Raises:
        ConfigError: not even the smallest fits.
    """
    plans = list(_plans(asked, items))
    for plan in plans:
        if plan.groups(arms) * group_s <= _HOPE * asked.seconds:
            return plan
    least = plans[-1]
    needed = least.groups(arms) * group_s
    raise ConfigError(
        f"a group takes about {group_s:.2g} s here, so that {least.seeds} seeds of {least.steps} steps with "
        f"{arms} estimators take some {needed:.0f} s, and {asked.seconds:g} s are given; give "
        f"--seconds {_rounded(needed)}, or fewer estimators (--estimator NAME), --steps or --seeds"
    )


def _plans(asked: Asked, items: int) -> Iterator[TrialPlan]:
    for plan in _PLANS:
        yield replace(
            plan,
            seeds=asked.seeds or plan.seeds,
            steps=plan.steps if asked.steps is None else asked.steps,
            items=min(items, plan.items),
        )


def _rounded(seconds: float) -> int:
    """Somewhat more, in tens."""
    return int(seconds * 1.2 // 10 + 1) * 10
