"""Rollouts as numbers (score, reward parts, length, habits), and how those differ between two policies."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

from environments.trajectory import Rewards, Trajectory, TrajectoryGroup

Numbers = Mapping[str, float]
"""By name: those below, and each turn reward as `PART` and its name."""

SCORE, OUTCOME, PASSED, TURNS, TOKENS = "score", "outcome", "passed", "turns", "tokens"
REPEATED, CUT, FAILED_CALLS = "repeated calls", "cut turns", "failed calls"
LENGTH = "tokens a turn"
PART = "part: "
UNNAMED = "turn reward"
"""The part of an environment that names none."""
HABITS = (TURNS, REPEATED, CUT, FAILED_CALLS, LENGTH)
"""What a policy may do more of because it is paid for it."""
Direction = Literal["up", "down", "unclear"]
Played = Sequence[Mapping[str, Sequence[Numbers]]]
"""[seed] item → the numbers of each rollout, of which there is one at least."""

_ERRORS = 2.0
"""Standard errors that a clear change is larger than."""
_BEYOND_LUCK = 6.0
"""Times as many items as luck alone would give."""


def numbers_of(trajectory: Trajectory) -> dict[str, float]:
    """Of one rollout, all per rollout; what was not given is left out.

    `REPEATED` counts calls that an earlier one of the rollout equals, `CUT` turns that ended at the limit of
    their tokens. A part is the sum over its turns, weighted. `PASSED` is 0 or 1, where that was judged.
    """
    acts = trajectory.acts
    calls = [(call.name, call.arguments) for turn in acts for call in turn.message.tool_calls]
    tokens = sum(turn.span.end - turn.span.start for turn in acts)
    numbers = {
        TURNS: float(len(acts)),
        TOKENS: float(tokens),
        LENGTH: tokens / max(1, len(acts)),
        REPEATED: float(len(calls) - len(set(calls))),
        CUT: float(sum(turn.finish_reason == "length" for turn in acts)),
        FAILED_CALLS: float(sum(result.error is not None for turn in acts for result in turn.tool_results)),
    }
    if trajectory.passed is not None:
        numbers[PASSED] = float(trajectory.passed)
    if (rewards := trajectory.rewards) is None:
        return numbers
    given = {SCORE: rewards.score, OUTCOME: rewards.outcome, **_parts(rewards)}
    return {name: value for name, value in given.items() if value is not None} | numbers


def mean_numbers(rollouts: Iterable[Numbers]) -> dict[str, float]:
    """The mean of each; a rollout without a part has earned nothing of it, and other gaps are left out."""
    found = list(rollouts)
    means: dict[str, float] = {}
    for name in dict.fromkeys(name for each in found for name in each):
        values = values_of(found, name)
        means[name] = sum(values) / len(values)
    return means


def values_of(rollouts: Sequence[Numbers], name: str) -> list[float]:
    """One number of each that has it; a part that is missing is 0."""
    if name.startswith(PART):
        return [each.get(name, 0.0) for each in rollouts]
    return [each[name] for each in rollouts if name in each]


def group_numbers(group: TrajectoryGroup) -> list[Numbers]:
    """Those of each rollout of a group."""
    return [numbers_of(trajectory) for trajectory in group.trajectories]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Of one number, from one policy to another."""

    before: float
    after: float
    by_seed: tuple[float, ...]
    """The mean difference of each seed."""
    error: float
    """Standard error of the mean difference over items and seeds; infinite with fewer than two of them."""

    @property
    def direction(self) -> Direction:
        """`up` and `down` where the difference is larger than its noise, and no seed contradicts it."""
        size = abs(self.after - self.before)
        if size <= 1e-9 or size <= _ERRORS * self.error:
            return "unclear"
        if all(each > 0 for each in self.by_seed):
            return "up"
        return "down" if all(each < 0 for each in self.by_seed) else "unclear"

    @property
    def is_no_better(self) -> bool:
        """Whether it does not even lean upwards: by less than its noise."""
        return self.after - self.before <= (self.error if math.isfinite(self.error) else 0.0)


def changes(before: Played, after: Played) -> dict[str, Change]:
    """The change of each number, compared item by item and seed by seed; in no order.

    A number that only one side has of an item is left out there; a part is 0 where it was not earned.
    """
    start, end = (
        [{item: mean_numbers(rollouts) for item, rollouts in seed.items()} for seed in side]
        for side in (before, after)
    )
    names = dict.fromkeys(
        name for means in (end, start) for seed in means for item in seed.values() for name in item
    )
    found = {name: _change(name, start, end) for name in names}
    return {name: change for name, change in found.items() if change is not None}


def risen_items(before: Played, after: Played, name: str) -> list[set[str]]:
    """[seed] the items in which each rollout of `after` has more of a number than each of `before`.

    That shows what a policy learned on some seeds or items alone. By luck g of 2 g rollouts are the largest
    once in (2 g over g): where that may be all, those count in which each has more than any of any item.
    """
    found, by_luck = list[set[str]](), 0.0
    for start, end in zip(before, after, strict=True):
        items: set[str] = set()
        for item in (each for each in start if each in end):
            low, high = values_of(start[item], name), values_of(end[item], name)
            if low and high:
                by_luck += 1 / math.comb(len(low) + len(high), len(low))
                items |= {item} if min(high) > max(low) else set()
        found.append(items)
    if sum(map(len, found)) >= max(2, _BEYOND_LUCK * by_luck):
        return found
    most = max(
        (each for seed in before for item in seed.values() for each in values_of(item, name)), default=0.0
    )
    return [
        {item for item in items if min(values_of(seed[item], name)) > most}
        for seed, items in zip(after, found, strict=True)
    ]


def single_rollouts(played: Played, items: Sequence[Collection[str]]) -> Played:
    """Each rollout of some items of each seed, as an item of its own."""
    return [
        {f"{item} {index}": [each] for item in seed if item in kept for index, each in enumerate(seed[item])}
        for seed, kept in zip(played, items, strict=True)
    ]


def _parts(rewards: Rewards) -> dict[str, float]:
    if rewards.turns is None:
        return {}
    sums: Counter[str] = Counter()
    for parts in rewards.turn_components:
        sums.update(parts)
    if not sums:
        return {PART + UNNAMED: sum(reward for reward in rewards.turns if reward is not None)}
    return {PART + name: value for name, value in sums.items()}


def _change(
    name: str, before: Sequence[Mapping[str, Numbers]], after: Sequence[Mapping[str, Numbers]]
) -> Change | None:
    """The change of one number, from means by seed and item; `None`: no item has it on both sides."""
    pairs = [
        [
            (start[item].get(name, 0.0), end[item].get(name, 0.0))
            for item in start
            if item in end and (name.startswith(PART) or (name in start[item] and name in end[item]))
        ]
        for start, end in zip(before, after, strict=True)
    ]
    pairs = [seed for seed in pairs if seed]
    every = [pair for seed in pairs for pair in seed]
    if not every:
        return None
    differences = [end - start for start, end in every]
    return Change(
        before=fmean(start for start, _ in every),
        after=fmean(end for _, end in every),
        by_seed=tuple(fmean(end - start for start, end in seed) for seed in pairs),
        error=stdev(differences) / math.sqrt(len(every)) if len(every) > 1 else math.inf,
    )
