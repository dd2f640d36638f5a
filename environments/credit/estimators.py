"""The shipped estimators; they raise CreditError if rewards are missing, NaN or infinite."""

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated, Literal

from environments.credit.estimator_registry import Param, PerTurn, register_estimator
from environments.credit.scored import Scored, check_turns, read, sum_forward
from environments.credit.terms import (
    Pool,
    Term,
    deviation,
    mean,
    means_of_others,
    minus_mean,
    minus_others,
    size_of,
    vary,
)
from environments.trajectory import Trajectory, TrajectoryGroup
from tools.errors import CreditError

Baseline = Literal["loo_index", "loo_total", "group_mean", "none"]
Mode = Literal["mean_norm", "mean_std_norm"]
Singleton = Literal["zero", "raw", "error"]

Gamma = Annotated[float, Param("discount per turn", low=0, high=1)]
Ddof = Annotated[int, Param("1: sample deviation, 0: population deviation", low=0, high=1)]
Eps = Annotated[float, Param("added to the deviation", low=0, high=1)]
Lam = Annotated[float, Param("trust in the rewards (1) or in the values (0)", low=0, high=1)]
Values = Annotated[
    PerTurn, Param("a critic's value of the state before each turn; none: those of `values`, or 0")
]
OfOne = Annotated[Singleton, Param("a group of one: no advantage, its raw score, or an error")]


# --- returns -------------------------------------------------------------------------------------------


@register_estimator(
    "turn_return",
    formula="A[i,k] = Σ_{l≥k} gamma^(l-k) r[i,l] + gamma^(K-k) w O[i] - b[i,k],  K the last turn; "
    "if threads overlap: of rewards scored after k was requested, gamma once per turn that its own thread "
    "requested between",
    bias="none at gamma=1 with loo_index, loo_total and none; group_mean only shrinks by (G-1)/G; "
    "group_std weighs groups by 1/std; a reward that depends on what siblings did (score_group) is outside "
    "this proof",
    source="leave-one-out baseline: arXiv 2402.14740, applied to per-turn returns",
)
def turn_return(
    group: TrajectoryGroup,
    *,
    gamma: Gamma = 1.0,
    outcome_weight: Annotated[float, Param("w, what one unit of outcome is worth", low=-1e6, high=1e6)] = 1.0,
    baseline: Annotated[
        Baseline,
        Param(
            "b: mean return of the other trajectories at the same turn index, of their whole trajectories, "
            "of the whole group's trajectories, or 0"
        ),
    ] = "loo_index",
    scale: Annotated[
        Literal["none", "group_std"], Param("group_std divides by the group's root mean square advantage")
    ] = "none",
) -> list[Term]:
    """Subtract a baseline made of the other trajectories from each turn's discounted return-to-go.

    If no other trajectory reached a turn, `loo_index` and `loo_total` subtract nothing from it.
    """
    scored = read(group)
    returns = Pool.of_turns([each.returns(gamma, outcome_weight) for each in scored])
    if baseline == "loo_index":
        terms = [minus_others("return", pool, is_return=True) for pool in _at_each_index(returns, scored)]
    else:
        first = zip(returns.places, returns.values, strict=True)
        starts = {index: value for (index, turn), value in first if turn == 0}
        totals = Pool.of_trajectories(
            [starts.get(index, outcome_weight * (each.outcome or 0.0)) for index, each in enumerate(scored)]
        )
        terms = [_minus_totals(returns, totals, baseline)]
    if scale == "group_std":
        differences = [each for term in terms for each in term.differences()]
        if unit := size_of(differences, len(differences)):
            note = "divided by the root mean square of the group's advantages"
            terms = [replace(term, divisor=unit, note=note) for term in terms]
    return terms


def _at_each_index(values: Pool, scored: Sequence[Scored]) -> Iterable[Pool]:
    indices = [each.indices for each in scored]
    return values.grouped_by(indices[index][turn or 0] for index, turn in values.places).values()


def _minus_totals(values: Pool, totals: Pool, baseline: Baseline) -> Term:
    raw = Term(name="return", values=values, is_return=True)
    if baseline == "none" or not totals.values:
        return raw
    if baseline == "loo_total" and len(totals.values) == 1:
        return replace(raw, has_no_peer=True)
    is_mean = baseline == "group_mean"
    levels = [mean(totals.values)] * len(totals.values) if is_mean else means_of_others(totals.values)
    baselines = [levels[index] for index, _ in values.places]
    return replace(raw, baselines=baselines, pool=totals, leaves_own_out=not is_mean)


@register_estimator(
    "turn_gae",
    formula="A[i,k] = d[k] + gamma lam A[i,k+1],  d[k] = r[i,k] + gamma V[i,k+1] - V[i,k]",
    bias="none at gamma=lam=1, below it that of the critic; without values there is no baseline",
    source="arXiv 1506.02438 over turns, reference mll-lab-nu/VAGEN (before its batch whitening)",
)
def turn_gae(
    group: TrajectoryGroup,
    *,
    gamma: Gamma = 1.0,
    lam: Lam = 1.0,
    values: Values = None,
) -> list[Term]:
    """Compute GAE over turns; the outcome is added to the last turn's reward, unscored turns earn 0.

    By default `values` are those of the environment's hook, or 0.

    Raises:
        CreditError: if values do not match the turns or are not finite, or threads overlap while `values` are
            given or `lam` is below 1.
    """
    return [gae_term(group, gamma, lam, values)]


def gae_term(group: TrajectoryGroup, gamma: float, lam: float, values: PerTurn) -> Term:
    scored = read(group)
    if values is None and lam == 1:
        return Term(
            name="return", values=Pool.of_turns([each.returns(gamma) for each in scored]), is_return=True
        )
    _refuse_overlap(scored, "turn_gae with values or lam below 1")
    if values is None:
        levels = [[0.0] * len(each.turns) for each in scored]
    else:
        for index, row in enumerate(values):
            check_turns(row, index, "value")
        levels = values
    # Value plus estimate, so that the baseline (the value) leaves the estimate.
    rows = [
        [estimate + level for estimate, level in zip(_gae(each.steps, row, gamma, lam), row, strict=True)]
        for each, row in zip(scored, levels, strict=True)
    ]
    term = Term(name="return", values=Pool.of_turns(rows), is_return=True)
    if values is None:
        return term
    baselines = [level for row in values for level in row]
    return replace(term, baselines=baselines, note="the baseline is the critic's value")


def _gae(steps: Sequence[float | None], values: Sequence[float], gamma: float, lam: float) -> list[float]:
    advantages: list[float] = []
    following = next_value = 0.0
    for reward, value in zip(reversed(steps), reversed(values), strict=True):
        following = (reward or 0.0) + gamma * next_value - value + gamma * lam * following
        next_value = value
        advantages.append(following)
    advantages.reverse()
    return advantages


def _refuse_overlap(scored: Sequence[Scored], what: str) -> None:
    for index, each in enumerate(scored):
        if each.overlap:
            raise CreditError(
                f"{what} needs turns that follow one another; those of trajectory {index} overlap in several "
                "threads: use turn_return, rloo or grpo"
            )


# --- scores: every turn of a trajectory gets the same ----------------------------------------------------


@register_estimator(
    "grpo",
    formula="A[i,k] = (S[i] - mean S) / (std S + eps),  S the trajectory's score",
    bias="with std: groups weigh 1/std, so rare successes and near-ties count most; "
    "without (Dr. GRPO): none, shrunk by (G-1)/G",
    source="arXiv 2402.03300; without std arXiv 2503.20783",
)
def grpo(
    group: TrajectoryGroup,
    *,
    norm_by_std: Annotated[bool, Param("divide by the group's standard deviation")] = True,
    ddof: Ddof = 1,
    eps: Eps = 1e-6,
    singleton: OfOne = "zero",
    zero_variance: Annotated[
        Literal["zero", "error"], Param("a group whose scores do not vary: no advantage, or an error")
    ] = "zero",
) -> list[Term]:
    """Normalise each trajectory's score in its group; every turn gets the same."""
    scores = scores_of(read(group))
    if len(scores.values) == 1:
        return [alone(scores, singleton, 1.0 + eps if norm_by_std else None)]
    if scores.values and zero_variance == "error" and not vary(scores.values):
        raise CreditError(
            f"every score of the group is {scores.values[0]:g}; zero_variance='zero' gives it no advantage"
        )
    return [minus_mean("score", scores, ddof=ddof, eps=eps if norm_by_std else None)]


@register_estimator(
    "rloo",
    formula="A[i,k] = S[i] - mean_{j≠i} S[j],  S the trajectory's score",
    bias="none; a turn also carries what came before it, which is only noise",
    source="arXiv 2402.14740",
)
def rloo(group: TrajectoryGroup, *, singleton: OfOne = "zero") -> list[Term]:
    """Subtract the mean score of the others; every turn gets the same."""
    scores = scores_of(read(group))
    if len(scores.values) == 1:
        return [alone(scores, singleton, None)]
    return [minus_others("score", scores)]


@register_estimator(
    "grpo_multiturn",
    formula="A[i,k] = (S[i] - mean S) / (std S + eps) on acts, 0 on summaries,  S the trajectory's score",
    bias="that of grpo; and summaries, which decide what later acts see, are not trained; with "
    "context_efficiency as the reward, length alone decides among right answers, at unit scale; a group of "
    "one is trained with its raw score",
    source="a verl fork for context condensation, commit c6829cf1: compute_grpo_multiturn_advantage",
    credits_summaries=False,
)
def grpo_multiturn(
    group: TrajectoryGroup,
    *,
    norm_by_std: Annotated[bool, Param("divide by the group's sample deviation")] = True,
    eps: Eps = 1e-6,
) -> list[Term]:
    """Normalise each trajectory's score in its group; every act gets the same, condensations get 0.

    A group of one keeps its raw score, as in the reference.
    """
    scores, added = scores_of(read(group)), eps if norm_by_std else None
    if len(scores.values) == 1:
        return [alone(scores, "raw", None if added is None else 1.0 + added)]
    return [minus_mean("score", scores, ddof=1, eps=added)]


@register_estimator(
    "opo",
    formula="A[i,k] = S[i] - Σ_j n[j] S[j] / Σ_j n[j],  n the trajectory's sampled tokens",
    bias="slight: its own score, in proportion to its own length, is part of the baseline",
    source="arXiv 2505.23585, reference verl",
)
def opo(group: TrajectoryGroup, *, singleton: OfOne = "zero") -> list[Term]:
    """Subtract the length-weighted mean score; every turn gets the same."""
    scores = scores_of(read(group))
    if len(scores.values) == 1:
        return [alone(scores, singleton, None)]
    tokens = [
        sum(turn.span.end - turn.span.start for turn in trajectory.turns) for trajectory in group.trajectories
    ]
    if not vary(scores.values) or not any(tokens):
        return [minus_mean("score", scores)]
    level = math.fsum(map(operator.mul, tokens, scores.values)) / sum(tokens)
    note = "the baseline weighs each trajectory by its sampled tokens"
    return [
        Term(name="score", values=scores, baselines=[level] * len(tokens), pool=scores, note=note),
    ]


@register_estimator(
    "passk",
    formula="A[i,k] = (S[i] - second largest S) / (std S + eps) of the first with the largest score, else 0",
    bias="strong: of the largest score of a group (pass@k), not of the mean; a tie teaches nothing",
    source="arXiv 2503.19595, reference verl",
)
def passk(
    group: TrajectoryGroup,
    *,
    norm_by_std: Annotated[bool, Param("divide by the group's standard deviation")] = True,
    ddof: Ddof = 1,
    eps: Eps = 1e-6,
    singleton: OfOne = "zero",
) -> list[Term]:
    """Credit only the best trajectory, with its lead over the second."""
    scores = scores_of(read(group))
    if len(scores.values) == 1:
        return [alone(scores, singleton, None)]
    if not vary(scores.values):
        return [minus_mean("score", scores)]
    best = max(range(len(scores.values)), key=scores.values.__getitem__)
    second = max(value for index, value in enumerate(scores.values) if index != best)
    return [
        Term(
            name="score",
            values=Pool([(best, None)], [scores.values[best]]),
            baselines=[second],
            divisor=deviation(scores.values, ddof) + eps if norm_by_std else None,
            pool=scores,
            note="the baseline is the second largest score",
        )
    ]


def scores_of(scored: Sequence[Scored]) -> Pool:
    return Pool.of_trajectories([each.score for each in scored])


def alone(scores: Pool, singleton: Singleton, divisor: float | None) -> Term:
    if singleton == "error":
        raise CreditError("the group has one trajectory; singleton='zero' gives it no advantage")
    if singleton == "raw":
        return Term(name="score", values=scores, divisor=divisor, has_no_peer=True)
    return replace(minus_mean("score", scores), note="no sibling to compare it with: no advantage")


# --- equal states --------------------------------------------------------------------------------------


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

    Raises:
        CreditError: if only some turns have an anchor state.
    """
    added = eps if mode == "mean_std_norm" else None
    scored = read(group)
    scores = pool = scores_of(scored)
    if episode_stats == "rows":
        copies = [index for index, each in enumerate(scored) for _ in each.turns]
        pool = Pool([(index, None) for index in copies], [scored[index].score for index in copies])
    if episode_stats == "rows" and len(pool.values) == 1:
        divisor = None if added is None else 1.0 + added
        terms = [Term(name="score", values=pool, divisor=divisor, has_no_peer=True)]
    else:
        terms = [minus_mean("score", scores, pool=pool, ddof=1, eps=added)]
    states = _equal_states(group, Pool.of_turns([each.returns(gamma) for each in scored]))
    steps = (
        minus_mean("return from equal states", state, ddof=1, eps=added, weight=step_weight)
        for state in states
    )
    return [*terms, *steps]


def _equal_states(group: TrajectoryGroup, returns: Pool) -> Iterable[Pool]:
    states = [turn.anchor for trajectory in group.trajectories for turn in trajectory.turns]
    if None not in states:
        return returns.grouped_by(states).values()
    if any(state is not None for state in states):
        index, turn = returns.places[states.index(None)]
        raise CreditError(
            f"trajectory {index}, turn {(turn or 0) + 1} has no anchor state while other turns have one; "
            "state_key must give one for every turn of the group, or for none"
        )
    return []


# --- outcome and turn rewards normalised apart -----------------------------------------------------------


@register_estimator(
    "mt_grpo",
    formula="two: A = z(O) + lambda z(sum r) up to the first tool result, z(O) after it, z(O + sum r) where "
    "there is none; per_turn: A[i,k] = z(O)[i] + lambda z(r[.,k])[i]",
    bias="strong: separate normalisation replaces the weights of outcome and turns by 1/std of each group, "
    "and per_turn ignores what a turn sets up for later ones",
    source="arXiv 2505.11821 v1, reference SiliangZeng/Multi-Turn-RL-Agent (two segments only)",
)
def mt_grpo(
    group: TrajectoryGroup,
    *,
    segments: Annotated[
        Literal["two", "per_turn"], Param("as published, or the usual K-turn form (biased, myopic)")
    ] = "two",
    turn_coef: Annotated[float, Param("lambda, the weight of the turn advantage", low=0, high=1e6)] = 1.0,
    eps: Eps = 1e-4,
    ddof: Ddof = 1,
) -> list[Term]:
    """Add an outcome advantage and a turn advantage, each normalised separately.

    The first segment ends with the first turn that a tool answered without an error. A group of one gets 0
    (NaN in the reference). Unscored turns add 0 to the sum, and are left out of `per_turn` statistics.

    Raises:
        CreditError: if threads overlap.
    """

    def z(name: str, pool: Pool, weight: float = 1.0) -> Term:
        return minus_mean(name, pool, ddof=ddof, eps=eps, weight=weight)

    scored = read(group)
    if segments == "two":
        _refuse_overlap(scored, "mt_grpo with two segments")
    outcomes = z("outcome", Pool.of_trajectories([each.outcome or 0.0 for each in scored]))
    if segments == "per_turn":
        turns = Pool.of_turns([each.turns for each in scored])
        return [outcomes, *(z("reward", pool, turn_coef) for pool in _at_each_index(turns, scored))]
    sums = z("turn rewards", Pool.of_trajectories([each.turn_sum for each in scored]), turn_coef)
    both = z(
        "turn rewards and outcome",
        Pool.of_trajectories([each.turn_sum + (each.outcome or 0.0) for each in scored]),
    )
    ends = [_first_answered(trajectory) for trajectory in group.trajectories]
    apart = [index for index, end in enumerate(ends) if end is not None]
    first = [(index, turn) for index, end in enumerate(ends) if end is not None for turn in range(end + 1)]
    whole = [index for index, end in enumerate(ends) if end is None]
    return [
        outcomes.moved(apart, [(index, None) for index in apart]),
        sums.moved([index for index, _ in first], first),
        both.moved(whole, [(index, None) for index in whole]),
    ]


def _first_answered(trajectory: Trajectory) -> int | None:
    for index, turn in enumerate(trajectory.turns):
        if any(result.error is None for result in turn.tool_results):
            return index
    return None


# --- step rewards --------------------------------------------------------------------------------------


@register_estimator(
    "process_supervision",
    formula="A[i,k] = sum_{l>=k} gamma^(l-k) z[i,l],  z the z-scores of all step rewards of the group",
    bias="depends on length: normalising before summing makes every further turn add (r - mean)/std",
    source="arXiv 2402.03300 section 4.1.3, reference NousResearch/atropos",
)
def process_supervision(group: TrajectoryGroup, *, gamma: Gamma = 1.0) -> list[Term]:
    """Normalise step rewards over the whole group, then sum them forward.

    The outcome is added to the last turn's reward; unscored turns stay out of the statistics and add 0. If
    the rewards do not vary, every advantage is 0 (the reference raises).

    Raises:
        CreditError: if threads overlap.
    """
    scored = read(group)
    _refuse_overlap(scored, "process_supervision")
    steps = [trajectory.steps for trajectory in scored]
    pool = Pool.of_turns(steps)
    term = Term(
        name="return",
        values=Pool.of_turns([sum_forward(row, gamma) for row in steps]),
        pool=pool,
        is_return=True,
    )
    if not vary(pool.values):
        note = "the step rewards of the group do not vary"
        return [replace(term, baselines=term.values.values, note=note)]
    centre = mean(pool.values)
    deviations = [[None if reward is None else reward - centre for reward in row] for row in steps]
    exact = [each for row in deviations for each in sum_forward(row, gamma)]
    return [
        replace(
            term,
            baselines=[value - each for value, each in zip(term.values.values, exact, strict=True)],
            exact=exact,
            divisor=deviation(pool.values, 0),
            note="the baseline is the mean of all step rewards of the group, discounted, once for each "
            "scored turn from here on; divided by their standard deviation",
        )
    ]


@register_estimator(
    "progress",
    formula="A[i,k] = sum_{l>=k} p[i,l] gamma^(l-k) / sum_{d=0..l} gamma^d,  p[i,l] = s[i,l] - s before it",
    bias="no baseline, and an early turn gets a share of later progress instead of all of it",
    source="potential differences, Ng, Harada and Russell 1999; the smearing is Turnwise's own",
)
def progress(
    group: TrajectoryGroup,
    *,
    gamma: Annotated[float, Param("share that moves one turn back; 0: none", low=0, high=1)] = 0.5,
) -> list[Term]:
    """Credit each turn's progress, spread backwards, where turn rewards score the state after the turn.

    Progress is the difference to the last scored state, or 0; the outcome is progress of the last turn. Each
    piece is shared with earlier turns by weights that sum to 1, so a trajectory's credit adds up to its last
    state score plus its outcome.

    Raises:
        CreditError: if threads overlap.
    """
    scored = read(group)
    _refuse_overlap(scored, "progress")
    smeared = Pool.of_turns([_smear(trajectory, gamma) for trajectory in scored])
    note = "progress of this turn and its share of later progress; nothing is compared"
    return [Term(name="progress", values=smeared, note=note)]


def _smear(trajectory: Scored, gamma: float) -> list[float]:
    level, weights = 0.0, 0.0
    pieces: list[float] = []
    for index, score in enumerate(trajectory.turns):
        weights = 1.0 + gamma * weights
        gained = 0.0 if score is None else score - level
        level = level if score is None else score
        if index == len(trajectory.turns) - 1:
            gained += trajectory.outcome or 0.0
        pieces.append(gained / weights)
    return sum_forward(pieces, gamma)
