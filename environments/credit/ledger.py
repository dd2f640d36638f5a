"""The ledger of a credited group: the terms that add up to each turn's recorded advantage.

Terms are computed again, and shown only if they add up to the recorded advantage.
"""

import math
import statistics
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from environments.credit.acts import acts_of
from environments.credit.estimator_registry import ESTIMATORS, describe, recorded_terms
from environments.credit.terms import Advantages, Part, Pool, Term, by_turn
from environments.trajectory import CreditedGroup, Trajectory, Turn
from tools.errors import CreditError

NO_PEER = "no sibling to compare it with: the advantage is the raw value"
MOST_PEERS = 32
_TOLERANCE = 1e-9
"""Relative, since rewards may have come through another program's JSON."""
_Sibling = tuple[int, tuple[Turn, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerPeer:
    """A sibling's turn, or a whole sibling, in a baseline."""

    sibling: int
    turn: int | None
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerTerm:
    """One comparison: `weight * (value - baseline) / divisor`."""

    name: str
    weight: float
    value: float
    baseline: float | None
    divisor: float | None
    peers: list[LedgerPeer]
    peer_count: int
    whole_group: bool
    """Whether the baseline includes the turn's own trajectory."""
    spread: float | None
    """Sample deviation of the peers' values; None with fewer than two."""
    has_no_peer: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLedger:
    """The computation of one turn's advantage."""

    reward: float | None
    follows: float | None
    """The discounted later rewards and the outcome; None if the estimator sums no returns."""
    terms: list[LedgerTerm]
    """Their sum is the advantage; empty if nothing was compared, or it is unknown how (see `notes`)."""
    advantage: float
    tokens: int
    """Tokens that are trained with this advantage."""
    notes: list[str]
    """Remarks that the numbers do not show."""


def ledger(credited: CreditedGroup) -> list[list[TurnLedger]]:
    """Return the entries `[trajectory][turn]`."""
    trajectories = credited.group.trajectories
    siblings = [(trajectory.sibling, acts_of(trajectory)) for trajectory in trajectories]
    found = _compute_terms(credited)
    return [
        [
            _entry(
                trajectory,
                (index, number),
                advantage,
                found if isinstance(found, str) else found[index][number],
                siblings,
            )
            for number, advantage in enumerate(advantages)
        ]
        for index, (trajectory, advantages) in enumerate(zip(trajectories, credited.advantages, strict=True))
    ]


def _compute_terms(credited: CreditedGroup) -> list[list[list[Part]]] | str:
    name, trajectories = credited.estimator, credited.group.trajectories
    if credited.status == "failed":
        return "the group failed: no credit"
    if name not in ESTIMATORS:
        return f"no estimator {name!r} is registered here that could say how"
    if describe(name).over_step is not None:
        return f"{name} compares all groups of its step, of which this is one"
    try:
        rows = by_turn(recorded_terms(credited), [len(trajectory.turns) for trajectory in trajectories])
    except Exception as error:  # noqa: BLE001  # it may be anybody's code, and the record another version's
        return f"{name} cannot say how: {type(error).__name__}"
    if credited.status == "no_credit" and not all(
        _adds_up(rows[index][number], credited.advantages[index][number])
        for index, trajectory in enumerate(trajectories)
        for number, turn in enumerate(trajectory.turns)
        if turn.trained
    ):
        # Nothing was computed for an evaluation, or a session without siblings.
        return credited.reason or "no credit"
    return rows


def _entry(
    trajectory: Trajectory,
    place: tuple[int, int],
    advantage: float,
    parts: Sequence[Part] | str,
    siblings: Sequence[_Sibling],
) -> TurnLedger:
    index, number = place
    turn, rewards = trajectory.turns[number], trajectory.rewards
    reward = None if rewards is None or rewards.turns is None else rewards.turns[number]
    shown: Sequence[Part] = ()
    if isinstance(parts, str):
        notes = [parts]
    elif turn.trained and not _adds_up(parts, advantage):
        notes = ["the recorded advantage is another number than the estimator's"]
    else:
        shown = parts
        notes = [note for term, *_ in parts for note in (NO_PEER * term.has_no_peer, term.note) if note]
        if turn.kind == "summary":
            of_act = "a summary is credited as the act that follows it is"
            notes.insert(0, of_act if parts else "no summary has credit")
        if turn.clock is not None and any(term.is_return for term, *_ in parts):
            notes.append("what follows is what was scored after its request, in any thread")
    if not turn.trained:
        notes.insert(0, "not trained: masked, and its advantage is 0")
    returns = [term.values.values[position] for term, position, _ in shown if term.is_return]
    return TurnLedger(
        reward=reward,
        follows=returns[0] - (reward or 0.0) if returns else None,
        terms=[_describe_term(term, position, index, turn, siblings) for term, position, _ in shown],
        advantage=advantage,
        tokens=turn.sampled_tokens if turn.trained else 0,
        notes=notes,
    )


def _describe_term(
    term: Term, position: int, trajectory: int, turn: Turn, siblings: Sequence[_Sibling]
) -> LedgerTerm:
    pool = Pool((), ()) if term.pool is None else term.pool
    if term.leaves_own_out:
        pool = pool.without(trajectory)
    peers: list[LedgerPeer] = []
    for (index, number), value in zip(pool.places[:MOST_PEERS], pool.values[:MOST_PEERS], strict=True):
        sibling, acts = siblings[index]
        if number is not None:
            # A summary that no act follows counts as one more act (see `acts`).
            number = acts[number].index if number < len(acts) else turn.index
        peers.append(LedgerPeer(sibling=sibling, turn=number, value=value))
    return LedgerTerm(
        name=term.name,
        weight=term.weight,
        value=term.values.values[position],
        baseline=None if term.baselines is None else term.baselines[position],
        divisor=term.divisor,
        peers=peers,
        peer_count=len(pool.values),
        whole_group=not term.leaves_own_out,
        spread=pool.spread,
        has_no_peer=term.has_no_peer,
    )


def _adds_up(parts: Sequence[Part], advantage: float) -> bool:
    # The tolerance grows with the numbers that were subtracted.
    sizes = (abs(term.weight * term.values.values[i] / (term.divisor or 1.0)) for term, i, _ in parts)
    size = max(1.0, max(sizes, default=0.0))
    total = math.fsum(difference for *_, difference in parts)
    return math.isclose(total, advantage, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE * size)


# --- two estimators ------------------------------------------------------------------------------------


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
    """Differences between two estimators' advantages."""

    groups: int
    turns: int
    changed: int
    flipped: int
    """Turns with an advantage of the opposite sign."""
    rank_correlation: float | None
    """Spearman's rank correlation, averaged over the groups in which both values vary."""
    by_turn: tuple[TurnChange, ...]


def credit_change(pairs: Iterable[tuple[Advantages, Advantages]]) -> CreditChange:
    """Compare two estimators' advantages, given as (before, after) of each group."""
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
    try:
        return statistics.correlation(_ranks(first), _ranks(second))
    except statistics.StatisticsError:
        return None


def _ranks(values: Sequence[float]) -> list[float]:
    in_order = sorted(values)
    return [(bisect_left(in_order, value) + 1 + bisect_right(in_order, value)) / 2 for value in values]
