"""Which estimator learned faster, as far as a few seeds can tell."""

import math
from collections.abc import Mapping, Sequence
from statistics import median


def comparison(by_arm: Mapping[str, Sequence[float]], of: str) -> str:
    """Which arm is ahead: on its worst seed still above the best seed of the others.

    Args:
        by_arm: one number per seed, larger is better; as many in each arm.
        of: what the number is.
    """
    if len(by_arm) < 2:
        return "only one estimator was tried: nothing to compare it with"
    order = sorted(by_arm, key=lambda arm: -median(by_arm[arm]))
    best, others = order[0], order[1:]
    seeds = len(by_arm[best])
    shown = ", ".join(f"{arm} {_range(by_arm[arm])}" for arm in order)
    if len({tuple(values) for values in by_arm.values()}) == 1:
        return f"all estimators gave the same {of} on every seed"
    if seeds < 2:
        return f"one seed separates nothing; {of}: {shown}"
    behind = [arm for arm in others if min(by_arm[best]) > max(by_arm[arm])]
    level = [arm for arm in others if arm not in behind]
    luck = f"with {seeds} seeds, luck alone does that once in {math.comb(2 * seeds, seeds)}"
    if not behind:
        return f"not separable with {seeds} seeds; {of}: {shown}"
    ahead = f"{_list([best, *level])} {'is' if not level else 'are'} ahead of {_list(behind)}"
    if level:
        ahead = f"{best} is ahead of {_list(behind)}, and not separable from {_list(level)}"
    return f"{ahead} ({luck}); {of}: {shown}"


def _range(values: Sequence[float]) -> str:
    return f"{median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def _list(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
