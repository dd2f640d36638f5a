"""How credit moved between two estimators: per turn, in rank and in sign."""

import math
import statistics
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from environments.credit.estimator_registry import Advantages
from tools.errors import CreditError


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnChange:
    turn: int
    count: int
    mean_before: float
    mean_after: float

    @property
    def mean_change(self) -> float:
        return self.mean_after - self.mean_before


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditChange:
    groups: int
    turns: int
    changed: int
    """Turns whose advantage is another number now."""
    flipped: int
    """Turns that were pushed up and are pushed down now, or the other way round."""
    rank_correlation: float | None
    """Spearman's, between the turns of a group, averaged over the groups where both sides vary; `None` when
    there is no such group."""
    by_turn: tuple[TurnChange, ...]


def credit_change(pairs: Iterable[tuple[Advantages, Advantages]]) -> CreditChange:
    """Compare two estimators' advantages, given as one (before, after) pair per group.

    Raises:
        CreditError: a pair whose sides do not have the same turns.
    """
    befores: defaultdict[int, list[float]] = defaultdict(list)
    afters: defaultdict[int, list[float]] = defaultdict(list)
    correlations: list[float] = []
    groups = 0
    for before, after in pairs:
        if [len(row) for row in before] != [len(row) for row in after]:
            raise CreditError(f"group {groups} has different turns before and after; nothing can be compared")
        groups += 1
        for sides, advantages in ((befores, before), (afters, after)):
            for row in advantages:
                for turn, value in enumerate(row):
                    sides[turn].append(value)
        correlation = rank_correlation([*chain.from_iterable(before)], [*chain.from_iterable(after)])
        if correlation is not None:
            correlations.append(correlation)
    moves = [move for turn in befores for move in zip(befores[turn], afters[turn], strict=True)]
    return CreditChange(
        groups=groups,
        turns=len(moves),
        changed=sum(old != new for old, new in moves),
        flipped=sum(old * new < 0 for old, new in moves),
        rank_correlation=math.fsum(correlations) / len(correlations) if correlations else None,
        by_turn=tuple(
            TurnChange(
                turn=turn,
                count=len(befores[turn]),
                mean_before=math.fsum(befores[turn]) / len(befores[turn]),
                mean_after=math.fsum(afters[turn]) / len(afters[turn]),
            )
            for turn in sorted(befores)
        ),
    )


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's rank correlation with mean ranks for ties; `None` when either side does not vary."""
    try:
        return statistics.correlation(_ranks(first), _ranks(second))
    except statistics.StatisticsError:
        return None


def _ranks(values: Sequence[float]) -> list[float]:
    in_order = sorted(values)
    return [(bisect_left(in_order, value) + 1 + bisect_right(in_order, value)) / 2 for value in values]
