"""What environments measure under names of their own: parts of rewards, raw and weighted, and metrics."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from environments.record.spread import Spread
from environments.trajectory import Rewards, Trajectory

MAX_NAMES = 20
"""Names that are kept of each kind; numbers under later ones are only counted."""
NAME_CHARS = 40
HEADLINE_NAMES = 3


@dataclass(slots=True, kw_only=True)
class NamedSpreads:
    """Means by name, in few names whatever comes."""

    spreads: dict[str, Spread] = field(default_factory=dict[str, Spread])
    left_out: int = 0
    """Numbers under names beyond the first `MAX_NAMES`."""

    def add(self, numbers: Mapping[str, float]) -> None:
        """Take numbers in, each under its name."""
        for name, value in numbers.items():
            shown = _shown(name)
            if shown in self.spreads or len(self.spreads) < MAX_NAMES:
                self.spreads.setdefault(shown, Spread()).add(value)
            else:
                self.left_out += 1

    def means(self) -> dict[str, float]:
        """The finite means, by name in order."""
        means = {name: spread.mean for name, spread in sorted(self.spreads.items())}
        return {name: mean for name, mean in means.items() if mean is not None and math.isfinite(mean)}

    def values(self) -> dict[str, Any]:
        """As JSON, by name in order."""
        return {name: spread.values() for name, spread in sorted(self.spreads.items())}

    def text(self) -> str:
        """`name: mean (count)` of each; empty when there is none."""
        shown = [f"{name}: {mean:.3f} ({self.spreads[name].count:,})" for name, mean in self.means().items()]
        return "  ".join([*shown, *([f"and {self.left_out:,} numbers of other names"] * bool(self.left_out))])


@dataclass(slots=True, kw_only=True)
class Measured:
    """Only `add` changes it."""

    parts: NamedSpreads = field(default_factory=NamedSpreads)
    """Of rewards, weighted, each summed over its trajectory, the outcome's part of that name included."""
    raw: NamedSpreads = field(default_factory=NamedSpreads)
    """Of the rewards of a `Rubric`, before they were weighted: of each turn, and of each outcome."""
    metrics: NamedSpreads = field(default_factory=NamedSpreads)

    def add(self, trajectory: Trajectory) -> None:
        """Take one rollout in."""
        self.metrics.add(trajectory.metrics)
        rewards = trajectory.rewards
        if rewards is not None:
            self.parts.add(summed_parts(rewards))
            for raw in (*rewards.turn_raw, rewards.outcome_raw):
                self.raw.add(raw)

    def rows(self) -> list[tuple[str, str]]:
        """Names and texts for people; a kind of which there is nothing is left out."""
        kinds = (("reward by part", self.parts), ("before weights", self.raw), ("metrics", self.metrics))
        return [(name, text) for name, kind in kinds if (text := kind.text())]

    def headline(self) -> str:
        """The means of a few parts and metrics, for a line with other things in it."""
        means = [*self.parts.means().items(), *self.metrics.means().items()]
        shown = [f"{name} {mean:.3f}" for name, mean in means[:HEADLINE_NAMES]]
        more = [f"+{len(means) - HEADLINE_NAMES}"] if means[HEADLINE_NAMES:] else []
        return ", ".join([*shown, *more])


def summed_parts(rewards: Rewards) -> dict[str, float]:
    """Each named part of a trajectory's rewards, weighted: the sum over its turns and its outcome."""
    sums: Counter[str] = Counter()
    for parts in (*rewards.turn_components, rewards.outcome_components):
        sums.update(parts)
    return dict(sums)


def _shown(name: str) -> str:
    text = " ".join("".join(each if each.isprintable() else " " for each in name).split())
    return text if len(text) <= NAME_CHARS else f"{text[: NAME_CHARS - 1]}…"
