"""What an advantage is made of: comparisons of a value with those of siblings, which add up to it."""

from collections.abc import Sequence
from dataclasses import dataclass

from environments.credit.stats import deviation, mean, vary


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A value that baselines are made of."""

    trajectory: int
    """Its position in the group."""
    turn: int | None
    """`None`: the value of a whole trajectory."""
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One comparison: `weight * (value - baseline) / divisor`."""

    name: str
    value: float
    baseline: float | None = None
    """`None`: nothing is subtracted."""
    divisor: float | None = None
    weight: float = 1.0
    pool: tuple[Compared, ...] = ()
    """What the baseline is made of; terms of one baseline share it."""
    own: Compared | None = None
    """The one of the pool that is left out."""

    @property
    def advantage(self) -> float:
        """What it adds to the advantage."""
        return self.weight * (self.value - (self.baseline or 0.0)) / (self.divisor or 1.0)

    @property
    def peers(self) -> list[Compared]:
        """What the baseline is made of."""
        return [each for each in self.pool if each is not self.own]

    @property
    def peer_count(self) -> int:
        """How many those are."""
        return len(self.pool) - (self.own is not None and bool(self.pool))


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """How an estimator comes to the advantage of one turn: its terms add up to it."""

    terms: tuple[Term, ...] = ()
    sums_forward: bool = False
    """Whether the value of the first term is the turn's reward and, discounted, what follows it."""
    notes: tuple[str, ...] = ()


NO_PEER = "no sibling to compare it with: the advantage is the raw return"
Explanations = list[list[Explanation]]
"""One per turn, ordered like the group's trajectories and their turns."""


def normalised(
    name: str, pool: Sequence[Compared], *, ddof: int, eps: float, by_std: bool = True
) -> list[Term]:
    """A term for each of the pool, as `centred` and `z_scores` compute them."""
    values = [each.value for each in pool]
    if not values:
        return []
    centre = mean(values)
    if not vary(values) or (by_std and len(values) <= ddof):
        # Equal but for rounding.
        return [Term(name=name, value=each.value, baseline=each.value, pool=tuple(pool)) for each in pool]
    divisor = deviation(values, ddof) + eps if by_std else None
    shared = tuple(pool)
    return [Term(name=name, value=each.value, baseline=centre, divisor=divisor, pool=shared) for each in pool]
