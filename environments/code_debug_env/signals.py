"""The three signals that reward a debugging turn; together they give a trajectory between 0 and 1."""

from collections.abc import Sequence
from dataclasses import dataclass

SOLUTION = "solution.py"
EXAMPLE_TEST = "test_example.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalWeights:
    """The most that each signal can give in one trajectory. Their sum should not exceed 1."""

    test_signal: float = 0.5
    diagnosis: float = 0.3
    efficiency: float = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFacts:
    """What is known about one turn."""

    fraction: float
    """Hidden checks that hold after the turn, from 0 to 1."""
    changed: bool = False
    """Whether the solution file was changed in this turn."""
    reproduced: bool = False
    """Whether a command of this turn made the function fail as it was at the start."""


def turn_signals(
    start: float, facts: Sequence[TurnFacts], max_turns: int, weights: SignalWeights | None = None
) -> list[dict[str, float]]:
    """Per turn, its reward by signal.

    `test_signal`: progress p = (f - f₀) / (1 - f₀), kept in 0..1; each turn gets its difference, so the
    turns add up to the final progress. `diagnosis`: once, for the first turn that reproduced the failure
    before the solution was touched, times the final progress. `efficiency`: on the last turn, the final
    progress times the share of turns that were not needed. So without progress there is nothing to gain, and
    one more turn never gains.

    Args:
        start: Fraction f₀ of hidden checks that hold before the first turn.
        facts: One entry per turn, in order.
        max_turns: Turns a rollout may have.
        weights: The most that each signal can give.
    """
    weights = weights or SignalWeights()
    signals: list[dict[str, float]] = []
    before, diagnosed, touched = 0.0, False, False
    final = progress(facts[-1].fraction, start) if facts else 0.0
    for index, turn in enumerate(facts):
        after = progress(turn.fraction, start)
        touched = touched or turn.changed
        diagnosis = turn.reproduced and not touched and not diagnosed
        diagnosed = diagnosed or diagnosis
        last = index == len(facts) - 1
        unused = max(0.0, 1 - index / max_turns)
        signals.append(
            {
                "test_signal": weights.test_signal * (after - before),
                "diagnosis": weights.diagnosis * final * diagnosis,
                "efficiency": weights.efficiency * final * unused * last,
            }
        )
        before = after
    return signals


def progress(fraction: float, start: float) -> float:
    """How much of what was broken at the start is mended, from 0 to 1."""
    return 0.0 if start >= 1 else min(max((fraction - start) / (1 - start), 0.0), 1.0)
