"""Credit where a history was condensed: estimators see acts only, and a summary is credited like an act.

A summary has no reward and takes no time: its return is that of the next act. Its peers must not depend on
its text, or credit is biased. Therefore a summary without a next act counts as an unscored act, and a
critic's value before a summary replaces that after it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from environments.credit.terms import Part, Place, Term, by_turn
from environments.trajectory import Rewards, Trajectory, TrajectoryGroup, Turn
from tools.errors import CreditError

Value = TypeVar("Value")
Values = Mapping[str, Sequence[Sequence[float]]]
Credit = Callable[[TrajectoryGroup, Values], list[Term]]


def acts_alone(group: TrajectoryGroup) -> TrajectoryGroup:
    if not _has_summaries(group):
        return group
    trajectories = [
        replace(
            each,
            turns=acts_of(each),
            rewards=None if each.rewards is None else _rewards_of_acts(each.rewards, each, index),
        )
        for index, each in enumerate(group.trajectories)
    ]
    return replace(group, trajectories=tuple(trajectories))


def over_all_turns(
    credit: Credit, group: TrajectoryGroup, values: Values, *, credits_summaries: bool = True
) -> list[Term]:
    """Return an estimator's terms for all turns (acts only, without `credits_summaries`)."""
    values_of_acts = {name: _values_of_acts(rows, group, name) for name, rows in values.items()}
    if not _has_summaries(group):
        return credit(group, values)
    acts = acts_alone(group)
    of_acts = _by_act(credit(acts, values_of_acts), acts)
    moves: dict[int, tuple[Term, list[int], list[Place]]] = {}
    for index, trajectory in enumerate(group.trajectories):
        number = 0
        for turn, each in enumerate(trajectory.turns):
            if each.kind == "summary" and not credits_summaries:
                continue
            has_act = number < len(of_acts[index])
            if each.kind != "summary" or (has_act and not values):
                parts = of_acts[index][number]
            else:
                own = {name: rows[index][turn] for name, rows in values.items()}
                seen = acts if has_act else _with_act(acts, index, each)
                valued = {name: _with_value(values_of_acts[name], index, number, own[name]) for name in own}
                parts = _by_act(credit(seen, valued), seen)[index][number]
            for term, position, _ in parts:
                _, positions, places = moves.setdefault(id(term), (term, [], []))
                positions.append(position)
                places.append((index, turn))
            number += each.kind != "summary"
    return [term.moved(positions, places) for term, positions, places in moves.values()]


def _has_summaries(group: TrajectoryGroup) -> bool:
    return any(turn.kind == "summary" for each in group.trajectories for turn in each.turns)


def _by_act(terms: Sequence[Term], acts: TrajectoryGroup) -> list[list[list[Part]]]:
    return by_turn(terms, [len(trajectory.turns) for trajectory in acts.trajectories])


def _values_of_acts(rows: Sequence[Sequence[float]], group: TrajectoryGroup, name: str) -> list[list[float]]:
    if len(rows) != len(group.trajectories):
        raise CreditError(f"{name} for {len(rows)} trajectories; the group has {len(group.trajectories)}")
    return [
        _at_acts(row, trajectory, f"{name} of trajectory {index}")
        for index, (row, trajectory) in enumerate(zip(rows, group.trajectories, strict=True))
    ]


def acts_of(trajectory: Trajectory) -> tuple[Turn, ...]:
    return tuple(turn for turn in trajectory.turns if turn.kind != "summary")


def _rewards_of_acts(rewards: Rewards, trajectory: Trajectory, index: int) -> Rewards:
    turns = rewards.turns
    if turns is not None:
        turns = tuple(_at_acts(turns, trajectory, f"turn rewards of trajectory {index}"))
        scored = sum(reward is not None for reward in rewards.turns or ())
        if scored > sum(reward is not None for reward in turns):
            raise CreditError(f"a summary of trajectory {index} has a reward; only acts are scored")
    parts, raw = (
        tuple(_at_acts(each, trajectory, f"parts of rewards of trajectory {index}")) if each else ()
        for each in (rewards.turn_components, rewards.turn_raw)
    )
    return replace(rewards, turns=turns, turn_components=parts, turn_raw=raw)


def _at_acts(values: Sequence[Value], trajectory: Trajectory, what: str) -> list[Value]:
    if len(values) != len(trajectory.turns):
        raise CreditError(
            f"{len(values)} {what} for its {len(trajectory.turns)} turns; give one per turn, summaries too"
        )
    return [value for value, turn in zip(values, trajectory.turns, strict=True) if turn.kind != "summary"]


def _with_act(acts: TrajectoryGroup, index: int, summary: Turn) -> TrajectoryGroup:
    trajectory, rewards = acts.trajectories[index], acts.trajectories[index].rewards
    if rewards is not None:
        rewards = replace(
            rewards,
            turns=None if rewards.turns is None else (*rewards.turns, None),
            turn_components=(*rewards.turn_components, {}) if rewards.turn_components else (),
            turn_raw=(*rewards.turn_raw, {}) if rewards.turn_raw else (),
        )
    turns = (*trajectory.turns, replace(summary, kind="act"))
    changed = replace(trajectory, turns=turns, rewards=rewards)
    others = acts.trajectories
    return replace(acts, trajectories=(*others[:index], changed, *others[index + 1 :]))


def _with_value(rows: Sequence[Sequence[float]], index: int, act: int, value: float) -> list[Sequence[float]]:
    row = rows[index]
    return [*rows[:index], [*row[:act], value, *row[act + 1 :]], *rows[index + 1 :]]
