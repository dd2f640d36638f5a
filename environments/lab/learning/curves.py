"""Curves of learning while they grow: by arm and seed, and the median over seeds."""

import math
from collections.abc import Sequence
from statistics import median

from rich.console import Group, RenderableType
from rich.text import Text

from environments.lab.learning.run_arm import LearnedArm, LearnedStep

_BARS = " ▁▂▃▄▅▆▇█"
_LEAST_CELLS = 10
_AFTER = 22
"""Cells behind a curve: how many seeds ended, and the last value."""


class Curves:
    """What each arm has reached so far; a run that ended counts on with its last value."""

    def __init__(self, arms: Sequence[str], seeds: int) -> None:
        """Nothing is known yet."""
        self._values: dict[str, dict[int, list[float]]] = {name: {} for name in arms}
        self._ended: dict[str, set[int]] = {name: set() for name in arms}
        self._seeds = seeds

    def add(self, arm: str, seed: int, step: LearnedStep) -> None:
        """Take in a step."""
        if step.value is not None:
            self._values[arm].setdefault(seed, []).append(step.value)

    def end(self, learned: LearnedArm) -> None:
        """Take in that a run ended."""
        self._ended[learned.arm].add(learned.seed)

    def of_seeds(self, arm: str) -> list[list[float]]:
        """The curves of an arm that have begun."""
        return [list(values) for _, values in sorted(self._values[arm].items())]

    def medians(self, arm: str) -> list[float]:
        """At each step over the seeds that have got there or ended, as far as half of them went."""
        curves, ended = self._values[arm], self._ended[arm]
        if not curves:
            return []
        lengths = sorted(map(len, curves.values()))
        return [
            median(
                values[min(step, len(values) - 1)]
                for seed, values in curves.items()
                if step < len(values) or seed in ended
            )
            for step in range(lengths[len(lengths) // 2])
        ]

    def longest(self) -> int:
        """Steps of the longest curve so far."""
        return max((len(each) - 1 for of in self._values.values() for each in of.values()), default=0)

    def picture(self, width: int) -> RenderableType:
        """A line for each arm, of bars as high as its median, over the steps of the longest curve."""
        name_cells = max(map(len, self._values)) + 1
        cells = max(_LEAST_CELLS, width - name_cells - _AFTER)
        steps = max(1, self.longest())
        lines: list[Text] = []
        for name in self._values:
            values = self.medians(name)
            line = Text(f"{name:<{name_cells}}", style="bold")
            line.append(_bars(values, steps, cells), style="not bold cyan")
            after = f" {len(self._ended[name])}/{self._seeds} seeds"
            line.append(after + (f" at {values[-1]:.2f}" if values else ""), style="not bold")
            lines.append(line)
        last = f"{steps} steps"
        axis = "0".ljust(max(2, cells - len(last))) + last
        lines.append(Text(" " * name_cells + axis, style="dim"))
        for line in lines:
            line.no_wrap, line.overflow = True, "ellipsis"
        return Group(*lines)


def _bars(values: Sequence[float], steps: int, cells: int) -> str:
    """One bar a cell, over the cells that the curve has got to."""
    if not values:
        return " " * cells
    per_cell = steps / max(1, cells - 1)
    shown = min(cells, math.floor((len(values) - 1) / per_cell) + 1)
    heights = [values[min(len(values) - 1, round(cell * per_cell))] for cell in range(shown - 1)]
    heights.append(values[-1])  # how far it got, also where a few steps share a cell
    # Even nothing at all is a line.
    marks = [_BARS[max(1, min(8, math.ceil(max(0.0, height) * 8)))] for height in heights]
    return "".join(marks).ljust(cells)
