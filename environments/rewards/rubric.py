"""Weights that make one reward of several numbers, and keep the numbers as they were."""

import math
from collections.abc import Mapping

from tools.errors import ConfigError, RewardError

RESERVED = "group"
"""The part of an outcome that compares siblings (`score_group`); its own parts are `group.NAME`."""


class WeightedParts(dict[str, float]):
    """A reward: its parts by name, weighted, whose sum it is; `raw` has them as they were."""

    def __init__(self, parts: Mapping[str, float], raw: Mapping[str, float]) -> None:
        super().__init__(parts)
        self.raw = dict(raw)


class Rubric:
    """Named weights: `Rubric(answer=1.0, format=0.2)`, called with a number for each.

    `rubric(answer=exact_match(text, expected), format=has_text(text))` is a reward of named parts. The record
    keeps each part raw and weighted. A part of weight 0 is only looked at. `None` for a part: it is not
    scored, which is not 0; where no part is scored, the reward is `None`.
    """

    def __init__(self, /, **weights: float) -> None:
        """Weights by name; any text may be a name (`**{"too long": -1.0}`).

        Raises:
            ConfigError: there is no part, two names are shown alike, or a weight is no finite number.
        """
        if not weights:
            raise ConfigError(
                "a Rubric without parts scores nothing; give weights by name: Rubric(answer=1.0)"
            )
        shown: dict[str, str] = {}
        for name, weight in weights.items():
            alike = " ".join(name.split()).casefold()
            if not alike or alike.partition(".")[0] == RESERVED:
                raise ConfigError(f"a Rubric's part is called {name!r}; that name is {_why(alike)}")
            if alike in shown:
                raise ConfigError(
                    f"a Rubric has parts {shown[alike]!r} and {name!r}; no reader can tell them apart"
                )
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):  # pyright: ignore[reportUnnecessaryIsInstance]  # user code
                raise ConfigError(f"a Rubric's weight of {name!r} is {weight!r:.100}; give a finite number")
            shown[alike] = name
        self.weights: Mapping[str, float] = {name: float(weight) for name, weight in weights.items()}

    def __call__(self, /, **raw: float | None) -> WeightedParts | None:
        """The weighted parts.

        Raises:
            RewardError: a part is missing or unknown, or no finite number.
        """
        if raw.keys() != self.weights.keys():
            raise RewardError(
                f"a Rubric of {', '.join(self.weights)} was given {', '.join(raw) or 'nothing'}; give each "
                f"of its parts, None for one that is not scored"
            )
        scored = {name: _finite(name, value) for name, value in raw.items() if value is not None}
        if not scored:
            return None
        return WeightedParts({name: self.weights[name] * value for name, value in scored.items()}, scored)


def _why(name: str) -> str:
    return "taken by score_group" if name else "no name"


def _finite(name: str, value: float) -> float:
    try:
        number = math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise RewardError(f"a Rubric's part {name!r} is {value!r:.100}; give a finite number, or None")
    return number
