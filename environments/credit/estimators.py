"""The shipped estimators; they raise CreditError if rewards are missing, NaN or infinite."""

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Literal

from environments.credit.branches import branch_terms, has_branches
from environments.credit.estimator_registry import Param, PerTurn, register_estimator
from environments.credit.scored import Scored, check_turns, read, sum_forward
from environments.credit.terms import (
    Pool,
    Term,
    deviation,
    mean,
    means_of_others,
    minus_mean,
    minus_mean_unless_single,
    minus_others,
    size_of,
    vary,
)
from environments.trajectory import TrajectoryGroup
from tools.errors import CreditError

Baseline = Literal["loo_index", "loo_total", "group_mean", "none"]

Gamma = Annotated[float, Param("discount per turn", low=0, high=1)]
Ddof = Annotated[int, Param("1: sample deviation, 0: population deviation", low=0, high=1)]
Eps = Annotated[float, Param("added to the deviation", low=0, high=1)]
Lam = Annotated[float, Param("trust in the rewards (1) or in the values (0)", low=0, high=1)]
Values = Annotated[
    PerTurn, Param("a critic's value of the state before each turn; none: those of `values`, or 0")
]


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
    if has_branches(group):
        compare = partial(minus_others, "return", is_return=True)
        each_index = [*_at_each_index(returns, scored)]
        return branch_terms(group, each_index, compare if baseline == "loo_index" else _raw_return)
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


def _raw_return(values: Pool) -> Term:
    return Term(name="return", values=values, is_return=True)


def _minus_totals(values: Pool, totals: Pool, baseline: Baseline) -> Term:
    raw = _raw_return(values)
    if baseline == "none" or not totals.values:
        return raw
    if baseline == "loo_total" and len(totals.values) == 1:
        return replace(raw, has_no_peer=True)
    is_mean = baseline == "group_mean"
    levels = [mean(totals.values)] * len(totals.values) if is_mean else means_of_others(totals.values)
    baselines = [levels[index] for index, _ in values.places]
    return replace(raw, baselines=baselines, pool=totals, leaves_own_out=not is_mean)


@register_estimator(
    "rllm_per_step",
    formula="A[i,k] = (R[i,k] - mean R[.,k]) / (std R[.,k] + eps),  R the return-to-go",
    bias="a turn index compares different states, and how many reach it depends on the policy; at gamma=0 a "
    "turn is not paid for what it sets up",
    source="rLLM's stepwise_advantage.mode=per_step, removed there in April 2026",
)
def rllm_per_step(
    group: TrajectoryGroup,
    *,
    gamma: Gamma = 0.0,
    norm_by_std: Annotated[bool, Param("divide by the sample deviation at the index")] = True,
    eps: Eps = 1e-6,
) -> list[Term]:
    """Normalise returns among the turns of equal index; a turn that only one sibling reached stays raw."""
    scored = read(group)
    returns = Pool.of_turns([each.returns(gamma) for each in scored])
    return [
        minus_mean_unless_single("return", pool, ddof=1, eps=eps if norm_by_std else None)
        for pool in _at_each_index(returns, scored)
    ]


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


def gae_term(
    group: TrajectoryGroup, gamma: float, lam: float, values: PerTurn, name: str = "turn_gae"
) -> Term:
    scored = read(group)
    if values is None and lam == 1:
        return Term(
            name="return", values=Pool.of_turns([each.returns(gamma) for each in scored]), is_return=True
        )
    _refuse_overlap(scored, f"{name} with values or lam below 1")
    for index, row in enumerate([] if values is None else values):
        check_turns(row, index, "value")
        if None in row:
            raise CreditError(f"value of trajectory {index}, turn {row.index(None) + 1} is None; give one")
    levels = [[0.0] * len(each.turns) for each in scored] if values is None else values
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
    zero_variance: Annotated[
        Literal["zero", "error"], Param("a group whose scores do not vary: no advantage, or an error")
    ] = "zero",
) -> list[Term]:
    """Normalise each trajectory's score in its group; every turn gets the same."""
    scores = scores_of(read(group))
    if len(scores.values) > 1 and zero_variance == "error" and not vary(scores.values):
        raise CreditError(
            f"every score of the group is {scores.values[0]:g}; zero_variance='zero' gives it no advantage"
        )
    return [minus_mean_unless_single("score", scores, ddof=ddof, eps=eps if norm_by_std else None)]


@register_estimator(
    "rloo",
    formula="A[i,k] = S[i] - mean_{j≠i} S[j],  S the trajectory's score",
    bias="none; a turn also carries what came before it, which is only noise",
    source="arXiv 2402.14740",
)
def rloo(group: TrajectoryGroup) -> list[Term]:
    """Subtract the mean score of the others; every turn gets the same."""
    if has_branches(group):
        return branch_terms(group, [scores_of(read(group))], partial(minus_others, "score"))
    return [minus_others("score", scores_of(read(group)))]


@register_estimator(
    "grpo_multiturn",
    formula="A[i,k] = (S[i] - mean S) / (std S + eps) on acts, 0 on summaries,  S the trajectory's score",
    bias="that of grpo; and summaries, which decide what later acts see, are not trained; with "
    "context_efficiency as the reward, length alone decides among right answers, at unit scale",
    source="a verl fork for context condensation, commit c6829cf1: compute_grpo_multiturn_advantage",
    credits_summaries=False,
)
def grpo_multiturn(
    group: TrajectoryGroup,
    *,
    norm_by_std: Annotated[bool, Param("divide by the group's sample deviation")] = True,
    eps: Eps = 1e-6,
) -> list[Term]:
    """Normalise each trajectory's score in its group; every act gets the same, condensations get 0."""
    added = eps if norm_by_std else None
    return [minus_mean_unless_single("score", scores_of(read(group)), ddof=1, eps=added)]


@register_estimator(
    "opo",
    formula="A[i,k] = S[i] - Σ_j n[j] S[j] / Σ_j n[j],  n the trajectory's sampled tokens",
    bias="slight: its own score, in proportion to its own length, is part of the baseline",
    source="arXiv 2505.23585, reference verl",
)
def opo(group: TrajectoryGroup) -> list[Term]:
    """Subtract the length-weighted mean score; every turn gets the same."""
    scores = scores_of(read(group))
    tokens = [sum(turn.span.end - turn.span.start for turn in each.turns) for each in group.trajectories]
    if not vary(scores.values) or not any(tokens):
        return [minus_mean_unless_single("score", scores)]
    level = math.fsum(map(operator.mul, tokens, scores.values)) / sum(tokens)
    note = "the baseline weighs each trajectory by its sampled tokens"
    return [Term(name="score", values=scores, baselines=[level] * len(tokens), pool=scores, note=note)]


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
) -> list[Term]:
    """Credit only the best trajectory, with its lead over the second."""
    scores = scores_of(read(group))
    if not vary(scores.values):
        return [minus_mean_unless_single("score", scores)]
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


# --- outcome and turn rewards normalised apart -----------------------------------------------------------


@register_estimator(
    "mt_grpo",
    formula="A = z(O) + lambda z(sum r) up to the first tool result, z(O) after it, z(O + sum r) where there "
    "is none",
    bias="strong: separate normalisation replaces the weights of outcome and turns by 1/std of each group",
    source="arXiv 2505.11821 v1, reference SiliangZeng/Multi-Turn-RL-Agent (two segments only)",
)
def mt_grpo(
    group: TrajectoryGroup,
    *,
    turn_coef: Annotated[float, Param("lambda, the weight of the turn advantage", low=0, high=1e6)] = 1.0,
    eps: Eps = 1e-4,
    ddof: Ddof = 1,
) -> list[Term]:
    """Add an outcome advantage and a turn advantage, each normalised separately.

    The first segment ends with the first turn that a tool answered without an error. A group of one gets 0
    (NaN in the reference). Unscored turns add 0 to the sum.

    Raises:
        CreditError: if threads overlap.
    """

    def z(name: str, values: Sequence[float]) -> Term:
        return minus_mean(name, Pool.of_trajectories(values), ddof=ddof, eps=eps)

    scored = read(group)
    _refuse_overlap(scored, "mt_grpo")
    outcomes = z("outcome", [each.outcome or 0.0 for each in scored])
    sums = replace(z("turn rewards", [each.turn_sum for each in scored]), weight=turn_coef)
    both = z("turn rewards and outcome", [each.turn_sum + (each.outcome or 0.0) for each in scored])
    answered = (
        (index for index, turn in enumerate(each.turns) if any(r.error is None for r in turn.tool_results))
        for each in group.trajectories
    )
    ends = [next(turns, None) for turns in answered]
    apart = [index for index, end in enumerate(ends) if end is not None]
    first = [(index, turn) for index, end in enumerate(ends) if end is not None for turn in range(end + 1)]
    whole = [index for index, end in enumerate(ends) if end is None]
    return [
        outcomes.moved(apart, [(index, None) for index in apart]),
        sums.moved([index for index, _ in first], first),
        both.moved(whole, [(index, None) for index in whole]),
    ]


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
    steps = [each.steps for each in scored]
    note = (
        "the baseline is the mean of all step rewards of the group, discounted, once for each scored turn "
        "from here on; divided by their standard deviation"
    )
    pool = Pool.of_turns(steps)
    ends = [[True] * len(row) for row in steps]
    term = _sum_of_z("return", steps, pool, ends=ends, gamma=gamma, eps=None)
    return [replace(term, is_return=True, note=note if vary(pool.values) else term.note)]


@register_estimator(
    "igpo",
    formula="A[i,k] = z[i,k] + gamma A[i,k+1],  z z-scores of turn rewards and outcomes, jointly or apart",
    bias="that of process_supervision; apart it also replaces the weights of turns and outcome by 1/std",
    source="arXiv 2510.14967, reference GuoqingWang1/IGPO of February 2026",
)
def igpo(
    group: TrajectoryGroup,
    *,
    gamma: Gamma = 1.0,
    streams: Annotated[
        Literal["joint", "separate"], Param("one z-score of turn rewards and outcomes, or one of each")
    ] = "joint",
    eps: Eps = 1e-6,
) -> list[Term]:
    """Replace rewards by their z-scores in the group, then sum each turn's own and all later ones.

    As in the reference an unscored turn is part of the step that the next scored turn ends.

    Raises:
        CreditError: if threads overlap.
    """
    scored = read(group)
    _refuse_overlap(scored, "igpo")
    turns = [each.turns for each in scored]
    last = [[*[None] * (len(each.turns) - 1), each.outcome] if each.turns else [] for each in scored]
    ends = [[value is not None for value in row[:-1]] + [True] * bool(row) for row in turns]
    pools = [Pool.of_turns(turns), Pool.of_turns(last)]
    if streams == "joint":
        joint = Pool([*pools[0].places, *pools[1].places], [*pools[0].values, *pools[1].values])
        pools = [joint, joint]
    return [
        _sum_of_z(name, rows, pool, ends=ends, gamma=gamma, eps=eps)
        for name, rows, pool in zip(("turn rewards", "outcome"), (turns, last), pools, strict=True)
    ]


def _sum_of_z(
    name: str,
    rows: Sequence[Sequence[float | None]],
    pool: Pool,
    *,
    ends: Sequence[Sequence[bool]],
    gamma: float,
    eps: float | None,
) -> Term:
    """Return discounted sums of deviations from the pool's mean, over its deviation (with IGPO's constants).

    Rows and `ends` are `[trajectory][turn]`; a turn that ends no step is part of the next turn's.
    """

    def sums(centre: float) -> list[list[float]]:
        return [
            sum_forward([None if value is None else value - centre for value in row], gamma, own)
            for row, own in zip(rows, ends, strict=True)
        ]

    term = Term(name=name, values=Pool.of_turns(sums(0.0)), pool=pool)
    if not vary(pool.values):
        return replace(term, baselines=term.values.values, note=f"{name} of the group does not vary")
    exact = [each for row in sums(mean(pool.values)) for each in row]
    baselines = [value - each for value, each in zip(term.values.values, exact, strict=True)]
    unit = deviation(pool.values, 0)
    unit = unit if eps is None else math.hypot(unit, 1e-4) + eps
    return replace(term, baselines=baselines, exact=exact, divisor=unit)
