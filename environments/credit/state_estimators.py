"""Estimators that use `state_key`: turns of siblings in one state are compared, or their mean is its value.

They raise CreditError if only some turns of a group have an anchor state.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Annotated, Literal, TypeVar

from environments.credit.estimator_registry import Param, register_estimator
from environments.credit.estimators import Ddof, Eps, Gamma, Lam, gae_term, scores_of
from environments.credit.scored import Scored, read
from environments.credit.terms import (
    ROUNDING,
    Place,
    Pool,
    Term,
    add_up,
    deviation,
    mean,
    minus_mean,
    minus_mean_unless_single,
    standardise,
)
from environments.trajectory import TrajectoryGroup
from tools.errors import CreditError

Mode = Literal["mean_norm", "mean_std_norm"]
Stats = Literal["trajectory", "rows"]
Value = TypeVar("Value")
Norm = Annotated[bool, Param("divide by the group's standard deviation")]

_EPS = 1e-6
_NO_DIFFERENCE = 1e-7
"""Smaller differences count as 0, which HGPO leaves out of its mean; the reference computes in float32."""


@register_estimator(
    "gigpo",
    formula="A[i,k] = norm(S)[i] + w * norm(R[j,l] for every turn with the state of turn (i,k))[i,k],  "
    "R the return-to-go",
    bias="slight: a state group's size depends on the policy's own actions; more with mean_std_norm, with "
    "episode_stats=rows, and where one state hides different histories",
    source="arXiv 2505.10978, reference langfengQ/verl-agent",
)
def gigpo(
    group: TrajectoryGroup,
    *,
    gamma: Gamma = 0.95,
    step_weight: Annotated[float, Param("w, the weight of the state advantage", low=0, high=1e6)] = 1.0,
    mode: Annotated[Mode, Param("norm: subtract the mean, or also divide by deviation + eps")] = "mean_norm",
    episode_stats: Annotated[
        Literal["trajectory", "rows"],
        Param("statistics of S over trajectories, or over turns as verl-agent does (a lone turn stays raw)"),
    ] = "trajectory",
    eps: Eps = 1e-6,
) -> list[Term]:
    """Add the trajectory's advantage and each turn's advantage among equal anchor states of all siblings.

    A state that occurs once adds nothing; without any anchor state only the first term remains.
    """
    added = eps if mode == "mean_std_norm" else None
    scored = read(group)
    returns = Pool.of_turns([each.returns(gamma) for each in scored])
    states = returns.grouped_by(_states(group)).values() if _has_states(group) else ()
    steps = (
        minus_mean("return from equal states", state, ddof=1, eps=added, weight=step_weight)
        for state in states
    )
    return [_rollout_term(scored, episode_stats, added), *steps]


def _rollout_term(scored: Sequence[Scored], stats: Stats, eps: float | None) -> Term:
    scores = scores_of(scored)
    if stats == "trajectory":
        return minus_mean("score", scores, ddof=1, eps=eps)
    copies = [index for index, each in enumerate(scored) for _ in each.turns]
    rows = Pool([(index, None) for index in copies], [scored[index].score for index in copies])
    return minus_mean_unless_single("score", scores, pool=rows, ddof=1, eps=eps)


@register_estimator(
    "hgpo",
    formula="A[i,k] = Σ_L w_L norm(R[j,l] for every turn after the same last L states)[i,k],  w_L ~ "
    "(L+1)^alpha where that is not 0",
    bias="that of gigpo, less where a state hides different histories; which levels count depends on returns",
    source="arXiv 2602.22817, reference langfengQ/verl-agent",
)
def hgpo(
    group: TrajectoryGroup,
    *,
    gamma: Gamma = 0.95,
    history_length: Annotated[int, Param("states before the own one, at most", low=0, high=1000)] = 2,
    mode: Annotated[
        Mode, Param("norm: subtract the mean, or also divide by deviation + eps")
    ] = "mean_std_norm",
    length_weight: Annotated[float, Param("alpha", low=0, high=100)] = 1.0,
    base_group: Annotated[
        bool, Param("gigpo's episode advantage (rows) is a level, too, with L = 0")
    ] = False,
) -> list[Term]:
    """Average a turn's advantages among turns with equal histories of each length."""
    scored, eps = read(group), _EPS if mode == "mean_std_norm" else None
    returns = Pool.of_turns([each.returns(gamma) for each in scored])
    states = dict(zip(returns.places, _states(group), strict=True))
    levels = [(_rollout_term(scored, "rows", eps), 1.0)] if base_group else []
    for length in range(1, history_length + 2):
        keys = [
            tuple(states[index, each] for each in range(turn - length + 1, turn + 1))
            if turn is not None and turn >= length - 1
            else None
            for index, turn in returns.places
        ]
        levels += [
            (minus_mean("return after equal states", pool, eps=eps), (length + 1.0) ** length_weight)
            for pool in returns.grouped_by(keys).values()
            if len(pool.values) > 1
        ]
    return _average(levels, [len(each.turns) for each in scored])


def _average(levels: Sequence[tuple[Term, float]], turns: Sequence[int]) -> list[Term]:
    """Return terms whose sum is, at each turn, the weighted mean of the levels that are not 0 there."""
    totals = [[0.0] * count for count in turns]
    parts: list[tuple[int, int, Place]] = []
    for level, (term, weight) in enumerate(levels):
        for position, difference in enumerate(term.differences()):
            index, turn = term.values.places[position]
            if abs(difference) >= _NO_DIFFERENCE:
                for each in range(turns[index]) if turn is None else (turn,):
                    totals[index][each] += weight
                    parts.append((level, position, (index, each)))
    moves: dict[tuple[int, float], tuple[list[int], list[Place]]] = {}
    for level, position, (index, turn) in parts:
        positions, places = moves.setdefault((level, totals[index][turn or 0]), ([], []))
        positions.append(position)
        places.append((index, turn))
    terms = [
        replace(levels[level][0].moved(*moved), weight=levels[level][1] / (total + _EPS))
        for (level, total), moved in moves.items()
    ]
    return terms or [minus_mean("return after equal states", Pool((), ()))]


# --- mean returns from equal states as values --------------------------------------------------------------


@register_estimator(
    "gagpo",
    formula="A[i,k] = d[k] + gamma lam A[i,k+1],  d[k] = r[i,k] + gamma V(s[k+1]) - V(s[k]),  V the mean "
    "return from a state in the group; then the z-scores of A over the group's turns",
    bias="a turn's own return is part of its values; a state may hide different histories; with norm_by_std "
    "groups weigh 1/std",
    source="arXiv 2605.13217 (no code is public)",
)
def gagpo(
    group: TrajectoryGroup,
    *,
    gamma: Gamma = 0.95,
    lam: Lam = 0.95,
    norm_by_std: Norm = True,
    ddof: Ddof = 1,
    eps: Eps = 1e-6,
) -> list[Term]:
    """Compute GAE over turns with the mean returns from equal states as values.

    Raises:
        CreditError: if threads overlap.
    """
    scored = read(group)
    returns = Pool.of_turns([each.returns(gamma) for each in scored])
    values = _in_rows(returns.averaged_by(_states(group)).values, scored)
    term = replace(
        gae_term(group, gamma, lam, values, "gagpo"), note="the baseline is the mean return from its state"
    )
    turns = [len(each.turns) for each in scored]
    advantages = [each for row in add_up([term], turns) for each in row]
    largest = max(map(abs, returns.values), default=0.0)
    if max(map(abs, advantages), default=0.0) <= ROUNDING * largest:
        return [replace(term, baselines=term.values.values)]
    if not norm_by_std:
        return [term]
    return standardise(
        [term],
        turns,
        centre=mean(advantages),
        unit=(deviation(advantages, ddof) if len(advantages) > ddof else 0.0) + eps,
    )


@register_estimator(
    "rtmc",
    formula="A[i,k] = Q(s,a) - V(s),  the mean returns from this state and action, and from this state",
    bias="that of gigpo's state advantage, without its episode part",
    source="arXiv 2604.11037 (no code is public; without its smoothing by a prior)",
)
def rtmc(group: TrajectoryGroup, *, gamma: Gamma = 1.0) -> list[Term]:
    """Credit an action with its mean return in a state, minus the mean return of all actions there."""
    returns, states = Pool.of_turns([each.returns(gamma) for each in read(group)]), _states(group)
    actions = returns.averaged_by([*zip(states, _actions(group), strict=True)])
    of_states = zip(actions.grouped_by(states).values(), returns.grouped_by(states).values(), strict=True)
    return [minus_mean("return of equal actions", values, pool=pool) for values, pool in of_states]


@register_estimator(
    "salt",
    formula="A[i,k] = mean of (S[j] - mean S) / (std S + eps) over the turns with equal state, action and "
    "next state,  S the trajectory's score",
    bias="that of grpo; a step that siblings share gets what they have in common",
    source="arXiv 2510.20022 (no code is public)",
)
def salt(group: TrajectoryGroup, *, norm_by_std: Norm = True, eps: Eps = 1e-6) -> list[Term]:
    """Average the trajectories' normalised scores over equal steps."""
    scored, states = read(group), _states(group)
    scores = Pool.of_turns([[each.score] * len(each.turns) for each in scored])
    own = _in_rows(states, scored)
    following = [after for row in own for after in [*row[1:], None][: len(row)]]
    steps = scores.averaged_by([*zip(states, _actions(group), following, strict=True)])
    added = eps if norm_by_std else None
    return [minus_mean("score of equal steps", steps, pool=scores_of(scored), ddof=1, eps=added)]


# --- trees of trajectories ---------------------------------------------------------------------------------


@register_estimator(
    "tree_grpo",
    formula="A[i,k] = z(S)[i] + z(S of the tree's trajectories)[i],  a tree: equal states at the first turn",
    bias="that of grpo, twice; a tree of one trajectory adds its raw score",
    source="arXiv 2509.21240, reference AMAP-ML/Tree-GRPO",
)
def tree_grpo(group: TrajectoryGroup, *, eps: Eps = 1e-6) -> list[Term]:
    """Normalise scores in the group and in each tree of it; every turn gets the sum."""
    scores = scores_of(read(group))
    trees = [each.turns[0].anchor if each.turns else None for each in group.trajectories]
    pools = [scores, *(scores.grouped_by(trees).values() if _has_states(group) else ())]
    return [minus_mean_unless_single("score", pool, ddof=1, eps=eps) for pool in pools]


# --- keys of turns -----------------------------------------------------------------------------------------


def _has_states(group: TrajectoryGroup) -> bool:
    anchors = [(index, turn) for index, each in enumerate(group.trajectories) for turn in each.turns]
    missing = [(index, turn) for index, turn in anchors if turn.anchor is None]
    if missing and len(missing) < len(anchors):
        index, turn = missing[0]
        raise CreditError(
            f"trajectory {index}, turn {turn.index + 1} has no anchor state while other turns have one; "
            "state_key must give one for every turn of the group, or for none"
        )
    return not missing


def _states(group: TrajectoryGroup) -> list[Hashable]:
    """Return the state of each turn as a key. In a group without `state_key` no two turns share one."""
    has_states = _has_states(group)
    return [
        turn.anchor if has_states else (index, number)
        for index, each in enumerate(group.trajectories)
        for number, turn in enumerate(each.turns)
    ]


def _in_rows(values: Iterable[Value], scored: Sequence[Scored]) -> list[list[Value]]:
    following = iter(values)
    return [[next(following) for _ in each.turns] for each in scored]


def _actions(group: TrajectoryGroup) -> list[Hashable]:
    """Return the tool calls of each turn, otherwise its text. No two turns without both share an action."""
    return [
        tuple((call.name, call.arguments) for call in turn.message.tool_calls)
        or turn.message.content
        or (index, number)
        for index, each in enumerate(group.trajectories)
        for number, turn in enumerate(each.turns)
    ]
