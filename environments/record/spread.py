"""Statistics of numbers that are not kept."""

import math
from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Spread:
    """Count, mean, standard deviation and range of numbers."""

    count: int = 0
    total: float = 0.0
    low: float = float("inf")
    high: float = float("-inf")
    centre: float = 0.0
    """The mean as it is updated: its errors do not grow with the numbers."""
    squares: float = 0.0
    """Sum of the squared distances from the mean (Welford, "Note on a method for calculating corrected sums
    of squares and products", 1962)."""

    def add(self, value: float) -> None:
        """Take one more number in."""
        self.count += 1
        self.total += value
        self.low = min(self.low, value)
        self.high = max(self.high, value)
        distance = value - self.centre
        self.centre += distance / self.count
        self.squares += distance * (value - self.centre)

    @property
    def mean(self) -> float | None:
        """`None` when there were no numbers: nothing is not zero."""
        return self.total / self.count if self.count else None

    @property
    def sd(self) -> float | None:
        """Sample standard deviation; `None` with fewer than two numbers, and beyond the range of numbers."""
        known = self.count > 1 and 0.0 <= self.squares < math.inf
        return math.sqrt(self.squares / (self.count - 1)) if known else None

    def values(self) -> dict[str, float | None]:
        """As JSON; `None` for what is unknown or beyond the range of numbers."""
        known = {"mean": self.mean, "sd": self.sd, "min": self.low, "max": self.high}
        return {"count": self.count, **{name: finite(value) for name, value in known.items()}}


def finite(value: float | None) -> float | None:
    """The number, where it is one that JSON has."""
    return value if value is not None and math.isfinite(value) else None
