"""The ledger of a credited group: how each turn came to its recorded advantage, or that nobody can say.

What an estimator says about itself (`register_estimator(explained=…)`) is shown only where it adds up to the
number that was recorded; there is no second computation that could say something else.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from environments.credit.estimator_registry import ESTIMATORS, explanations
from environments.credit.stats import deviation
from environments.credit.terms import Explanation, Term
from environments.trajectory import CreditedGroup, Trajectory, Turn

_TOLERANCE = 1e-9
"""Of what is compared: rewards may have come through another program's JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerPeer:
    """What a baseline was made of."""

    sibling: int
    turn: int | None
    """Its index; `None`: the whole trajectory."""
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLedger:
    """How the advantage of one turn came about."""

    reward: float | None
    follows: float | None
    """What later rewards and the outcome add to the turn's reward; `None`: they are not summed up."""
    terms: tuple[Term, ...]
    """Their advantages add up to the turn's; empty where nothing is compared, or nobody can say how."""
    advantage: float
    tokens: int
    """Trained with this advantage."""
    notes: tuple[str, ...]


def ledger(credited: CreditedGroup) -> list[list[TurnLedger]]:
    """One entry per turn, ordered like the group's trajectories and their turns."""
    explained, reason = _explained(credited)
    return [
        [
            _entry(trajectory, index, advantage, None if explained is None else explained[i][index], reason)
            for index, advantage in enumerate(advantages)
        ]
        for i, (trajectory, advantages) in enumerate(
            zip(credited.group.trajectories, credited.advantages, strict=True)
        )
    ]


def peers_of(
    term: Term, trajectories: Sequence[Trajectory], turn: Turn, *, most: int | None = None
) -> list[LedgerPeer]:
    """What the baseline of a turn's term was made of, or the first of that."""
    shown = term.peers[:most]
    acts = {each.trajectory: trajectories[each.trajectory].acts for each in shown if each.turn is not None}
    return [
        LedgerPeer(
            sibling=trajectories[each.trajectory].sibling,
            turn=None if each.turn is None else _index(acts[each.trajectory], each.turn, turn),
            value=each.value,
        )
        for each in shown
    ]


def spread_of(term: Term) -> float | None:
    """The sample deviation of the values that the baseline was made of; `None` with fewer than two."""
    values = [each.value for each in term.peers]
    return deviation(values, 1) if len(values) > 1 else None


def _index(acts: Sequence[Turn], number: int, turn: Turn) -> int:
    """The index of the act of that number; a summary that no act follows is one more (see `acts`)."""
    return acts[number].index if number < len(acts) else turn.index


def _explained(credited: CreditedGroup) -> tuple[Sequence[Sequence[Explanation]] | None, str]:
    """What the estimator says, and why it says nothing."""
    name = credited.estimator
    if credited.status == "failed":
        return None, "the group failed: no credit"
    if name not in ESTIMATORS:
        return None, f"no estimator {name!r} is registered here that could say how"
    try:
        explained = explanations(name, credited.group, credited.estimator_params)
    except Exception as error:  # noqa: BLE001  # it may be anybody's code, and the record another version's
        return None, f"{name} cannot say how: {type(error).__name__}"
    shape = [len(row) for row in credited.advantages]
    if explained is not None and [len(row) for row in explained] != shape:
        return None, f"{name} says it for other turns"
    return explained, f"{name} does not say how"


def _entry(
    trajectory: Trajectory, index: int, advantage: float, explained: Explanation | None, reason: str
) -> TurnLedger:
    turn, rewards = trajectory.turns[index], trajectory.rewards
    reward = None if rewards is None or rewards.turns is None else rewards.turns[index]
    terms, notes, follows = (), (reason,), None
    if explained is not None:
        terms, notes = explained.terms, explained.notes
        if not _adds_up(terms, advantage) and turn.trained:
            terms, notes = (), ("the recorded advantage is another number than the estimator's",)
        elif explained.sums_forward and terms:
            follows = terms[0].value - (reward or 0.0)
    if turn.kind == "summary" and explained is not None:
        notes = ("a summary is credited as the act that follows it is", *notes)
    if not turn.trained:
        notes = ("not trained: masked, and its advantage is 0", *notes)
    return TurnLedger(
        reward=reward,
        follows=follows,
        terms=terms,
        advantage=advantage,
        tokens=turn.span.end - turn.span.start if turn.trained else 0,
        notes=notes,
    )


def _adds_up(terms: Sequence[Term], advantage: float) -> bool:
    total = math.fsum(term.advantage for term in terms)
    return math.isclose(total, advantage, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE * _size(terms))


def _size(terms: Sequence[Term]) -> float:
    """How large the numbers are that were subtracted from each other."""
    sizes = [abs(term.weight * term.value / (term.divisor or 1.0)) for term in terms]
    return max(1.0, *sizes) if sizes else 1.0
