"""Statistics of numbers that are not kept."""

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Spread:
    """Count, mean and range of numbers."""

    count: int = 0
    total: float = 0.0
    low: float = float("inf")
    high: float = float("-inf")

    def add(self, value: float) -> None:
        """Take one more number in."""
        self.count += 1
        self.total += value
        self.low = min(self.low, value)
        self.high = max(self.high, value)

    @property
    def mean(self) -> float | None:
        """`None` when there were no numbers: nothing is not zero."""
        return self.total / self.count if self.count else None
