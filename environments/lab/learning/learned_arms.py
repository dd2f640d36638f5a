"""Arms beside each other: the steps that each seed took, medians, the ratio, and what that shows."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from environments.lab.learning.run_arm import Arm, LearnedArm

TURN, SCALAR, CONTROL = "turn_return", "scalar", "control"
"""The arms whose medians are compared, and the one that can learn nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedArms:
    """What came out of each arm with each seed."""

    arms: Sequence[Arm]
    ended: Mapping[str, Sequence[LearnedArm]]
    """By name, in the order of seeds."""
    cap: int
    """Steps."""
    target: float
    seconds: float

    def steps(self, name: str) -> list[int | None]:
        """Until the target, seed by seed; `None`: not reached."""
        return [each.steps for each in self.ended[name]]

    def median(self, name: str) -> float | None:
        """Of the steps; `None` where most seeds did not arrive."""
        middle = median(math.inf if each is None else each for each in self.steps(name))
        return None if math.isinf(middle) else middle

    @property
    def ratio(self) -> float | None:
        """Steps that turn credit takes, in those of the scalar; `None` where one of them has no median."""
        turn, scalar = self.median(TURN), self.median(SCALAR)
        return None if turn is None or scalar is None or scalar == 0 else turn / scalar

    def values(self) -> dict[str, Any]:
        """As JSON values."""
        arms = {
            arm.name: {
                "steps": self.steps(arm.name),
                "median": self.median(arm.name),
                "success": [each.curve[-1].success for each in self.ended[arm.name]],
            }
            for arm in self.arms
        }
        return {"arms": arms, "ratio": self.ratio, "seconds": round(self.seconds, 3)}


def findings(learned: LearnedArms) -> list[str]:
    """What the table shows, in sentences that claim no more."""
    control = learned.steps(CONTROL)
    arrived = sum(each is not None for each in control)
    nobody = not any(learned.steps(TURN) + learned.steps(SCALAR))
    return [
        f"{_medians(learned)}{'' if nobody else f'; {_seeds(learned)}'}.",
        f"The control, whose advantages changed places among a step's turns, arrived in {arrived} of "
        f"{len(control)}.",
    ]


def _medians(learned: LearnedArms) -> str:
    turn, scalar = learned.median(TURN), learned.median(SCALAR)
    if turn is None or scalar is None:
        late = [name for name, middle in ((TURN, turn), (SCALAR, scalar)) if middle is None]
        return f"Within {learned.cap} steps most seeds of {' and of '.join(late)} did not arrive"
    times = "" if learned.ratio is None else f", {learned.ratio:.2f} of them"
    return f"{TURN} took {turn:g} steps and {SCALAR} {scalar:g} in the median{times}"


def _seeds(learned: LearnedArms) -> str:
    """Whether the seeds tell the two apart."""
    turn, scalar = learned.steps(TURN), learned.steps(SCALAR)
    count = f"{len(turn)} seed{'s' if len(turn) > 1 else ''}"
    if turn == scalar:
        return f"equal, seed by seed, in {count}"
    first, second = ([math.inf if each is None else each for each in steps] for steps in (turn, scalar))
    if max(first) < min(second):
        return f"every one of {count} was faster than every one of {SCALAR}"
    if max(second) < min(first):
        return f"every one of {count} was slower than every one of {SCALAR}"
    return f"their ranges overlap, so {count} do not tell them apart"
