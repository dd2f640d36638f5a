"""The ledger of a credited group: the terms that each turn's recorded advantage is the sum of.

They are those that the estimator returns for the group with the recorded parameters; where they do not add
up to the number that was recorded (another version computed it), they are not shown.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from environments.credit.acts import acts_of
from environments.credit.estimator_registry import ESTIMATORS, describe, terms_of
from environments.credit.terms import Part, Pool, Term, by_turn
from environments.trajectory import CreditedGroup, Trajectory, Turn

NO_PEER = "no sibling to compare it with: the advantage is the raw value"
MOST_PEERS = 32
"""That one term names."""
_TOLERANCE = 1e-9
"""Of what is compared: rewards may have come through another program's JSON."""
_Sibling = tuple[int, tuple[Turn, ...]]
"""Its number, and its acts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerPeer:
    """What a baseline was made of: a sibling's turn, or a whole sibling."""

    sibling: int
    turn: int | None
    """Its index; `None`: the whole trajectory."""
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerTerm:
    """One comparison: `weight * (value - baseline) / divisor`."""

    name: str
    """What is compared: `return`, `score`, `outcome`, …"""
    weight: float
    value: float
    baseline: float | None
    """`None`: nothing is subtracted."""
    divisor: float | None
    """`None`: not divided."""
    peers: list[LedgerPeer]
    """The first of them, where they are many; its own among them where `whole_group`."""
    peer_count: int
    whole_group: bool
    """Whether none is left out of the baseline, so that the turn's own value is in it, too."""
    spread: float | None
    """Sample deviation of the peers' values; `None` with fewer than two."""
    has_no_peer: bool
    """Whether the value is raw because no sibling has one to compare it with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLedger:
    """How the advantage of one turn came about."""

    reward: float | None
    follows: float | None
    """What later rewards and the outcome add to the turn's reward, discounted; `None`: not summed up."""
    terms: list[LedgerTerm]
    """They add up to the advantage; empty where nothing is compared, or nobody can say how: see `notes`."""
    advantage: float
    tokens: int
    """Trained with this advantage."""
    notes: list[str]
    """What the numbers do not show: no peer, why a divisor, as the act that follows, not trained."""


def ledger(credited: CreditedGroup) -> list[list[TurnLedger]]:
    """One entry per turn, ordered like the group's trajectories and their turns."""
    trajectories = credited.group.trajectories
    siblings = [(trajectory.sibling, acts_of(trajectory)) for trajectory in trajectories]
    found = _recorded_terms(credited)
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


def _recorded_terms(credited: CreditedGroup) -> list[list[list[Part]]] | str:
    name, trajectories = credited.estimator, credited.group.trajectories
    if credited.status == "failed":
        return "the group failed: no credit"
    if name not in ESTIMATORS:
        return f"no estimator {name!r} is registered here that could say how"
    if describe(name).over_step is not None:
        return f"{name} compares all groups of its step, of which this is one"
    try:
        terms = terms_of(name, credited.group, **credited.estimator_params)
        rows = by_turn(terms, [len(trajectory.turns) for trajectory in trajectories])
    except Exception as error:  # noqa: BLE001  # it may be anybody's code, and the record another version's
        return f"{name} cannot say how: {type(error).__name__}"
    if credited.status == "no_credit" and not all(
        _adds_up(rows[index][number], credited.advantages[index][number])
        for index, trajectory in enumerate(trajectories)
        for number, turn in enumerate(trajectory.turns)
        if turn.trained
    ):
        # An evaluation, or a session without siblings: nothing was computed.
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
            notes.insert(
                0, "a summary is credited as the act that follows it is" if parts else "no summary has credit"
            )
        if turn.clock is not None and any(term.is_return for term, *_ in parts):
            notes.append("what follows is what was scored after its request, in any thread")
    if not turn.trained:
        notes.insert(0, "not trained: masked, and its advantage is 0")
    returns = [term.values.values[position] for term, position, _ in shown if term.is_return]
    return TurnLedger(
        reward=reward,
        follows=returns[0] - (reward or 0.0) if returns else None,
        terms=[_shown(term, position, index, turn, siblings) for term, position, _ in shown],
        advantage=advantage,
        tokens=turn.span.end - turn.span.start if turn.trained else 0,
        notes=notes,
    )


def _shown(
    term: Term, position: int, trajectory: int, turn: Turn, siblings: Sequence[_Sibling]
) -> LedgerTerm:
    pool = Pool((), ()) if term.pool is None else term.pool
    if term.leaves_own_out:
        pool = pool.without(trajectory)
    peers: list[LedgerPeer] = []
    for (index, number), value in zip(pool.places[:MOST_PEERS], pool.values[:MOST_PEERS], strict=True):
        sibling, acts = siblings[index]
        if number is not None:
            # A summary that no act follows is credited as one more act (see `acts`).
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
    # How large the numbers are that were subtracted from each other.
    size = max(
        [1.0, *(abs(term.weight * term.values.values[i] / (term.divisor or 1.0)) for term, i, _ in parts)]
    )
    total = math.fsum(difference for *_, difference in parts)
    return math.isclose(total, advantage, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE * size)
