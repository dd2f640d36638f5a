"""Estimators that compare all groups of a training step, such as normalisation over a batch."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

from environments.credit.estimator_registry import Param, register_estimator
from environments.credit.estimators import Eps, Gamma, Lam, Values, gae_term, scores_of
from environments.credit.scored import read
from environments.credit.terms import (
    Pool,
    Term,
    add_up,
    deviation,
    minus_mean_unless_single,
    standardise,
    vary,
)
from environments.trajectory import Trajectory, TrajectoryGroup

Weigh = Literal["tokens", "trajectories"]
StepDdof = Annotated[int, Param("1: sample deviation, 0: population deviation, of the step", low=0, high=1)]
_OF_A_STEP = "in a small step, as each value is part of its statistics; in a large one only a scale per step"


# --- comparisons over a step ---------------------------------------------------------------------------


def _whiten(
    terms: Sequence[Sequence[Term]],
    groups: Sequence[TrajectoryGroup],
    *,
    weigh: Annotated[
        Weigh, Param("what counts as one in the statistics of the step: trained tokens, or trajectories")
    ] = "tokens",
    ddof: StepDdof = 1,
    eps: Eps = 1e-8,
    eps_in: Annotated[
        Literal["variance", "deviation"], Param("where eps is added: below the root, or after it")
    ] = "variance",
) -> list[list[Term]]:
    """Subtract the step's mean and divide by its deviation; no terms if the sums do not vary."""
    shapes = [[len(trajectory.turns) for trajectory in group.trajectories] for group in groups]
    weighed = [
        (value, weight)
        for own, group, shape in zip(terms, groups, shapes, strict=True)
        for trajectory, row in zip(group.trajectories, add_up(own, shape), strict=True)
        for value, weight in zip(row, _weights(trajectory, weigh), strict=True)
        if weight
    ]
    total = math.fsum(weight for _, weight in weighed)
    if not vary([value for value, _ in weighed]) or total <= ddof:
        return [[] for _ in groups]
    centre = math.fsum(value * weight for value, weight in weighed) / total
    variance = math.fsum((value - centre) ** 2 * weight for value, weight in weighed) / (total - ddof)
    unit = math.sqrt(variance + eps) if eps_in == "variance" else math.sqrt(variance) + eps
    return [
        standardise(own, shape, centre=centre, unit=unit) for own, shape in zip(terms, shapes, strict=True)
    ]


def _weights(trajectory: Trajectory, weigh: Weigh) -> list[float]:
    trained = sum(turn.trained for turn in trajectory.turns)
    return [
        0.0 if not turn.trained else turn.span.end - turn.span.start if weigh == "tokens" else 1.0 / trained
        for turn in trajectory.turns
    ]


def _by_deviation_of_scores(
    terms: Sequence[Sequence[Term]],
    groups: Sequence[TrajectoryGroup],
    *,
    ddof: StepDdof = 1,
    eps: Eps = 1e-4,
) -> list[list[Term]]:
    scores = [value for group in groups for value in scores_of(read(group)).values]
    unit = (deviation(scores, ddof) if len(scores) > ddof else 0.0) + eps
    return [[replace(term, divisor=unit or None) for term in own] for own in terms]


def _by_share_of_scored(
    terms: Sequence[Sequence[Term]], groups: Sequence[TrajectoryGroup]
) -> list[list[Term]]:
    scores = [value for group in groups for value in scores_of(read(group)).values]
    alpha = len(scores) / max(1, sum(map(bool, scores)))
    return [[replace(term, weight=alpha) for term in own] for own in terms]


# --- estimators ----------------------------------------------------------------------------------------


@register_estimator(
    "reinforce_pp",
    formula="A[i,k] = (x[i,k] - mean x) / sqrt(var x + eps) over all groups of the step,  "
    "x = Σ_{l≥k} gamma^(l-k) r[i,l] + gamma^(K-k) O[i], or with values and lam what turn_gae gives",
    bias=f"{_OF_A_STEP}; hard and easy items share one baseline, which is only noise",
    source="arXiv 2501.03262, reference verl (its gamma is per token); with values VAGEN's turn-level GAE; "
    "rLLM's prpo",
    over_step=_whiten,
)
def reinforce_pp(
    group: TrajectoryGroup, *, gamma: Gamma = 1.0, lam: Lam = 1.0, values: Values = None
) -> list[Term]:
    """Normalise returns per turn over all groups of a training step (REINFORCE++).

    Raises:
        CreditError: if `turn_gae` raises it.
    """
    return [gae_term(group, gamma, lam, values)]


@register_estimator(
    "reinforce_pp_baseline",
    formula="A[i,k] = (x[i] - mean x) / sqrt(var x + eps) over all groups of the step,  "
    "x = S[i] - mean S of the group",
    bias=f"{_OF_A_STEP}; over tokens its mean is not 0, so that a group whose scores tie is pushed one way",
    source="arXiv 2501.03262, references verl and rLLM",
    over_step=_whiten,
)
def reinforce_pp_baseline(group: TrajectoryGroup) -> list[Term]:
    """Subtract the group's mean score, then normalise over all groups of a training step."""
    return _centre(group)


@register_estimator(
    "grpo_batch",
    formula="A[i,k] = (S[i] - mean S of the group) / (std S of the step + eps)",
    bias=_OF_A_STEP,
    source="arXiv 2508.08221, reference TRL: scale_rewards='batch'",
    over_step=_by_deviation_of_scores,
)
def grpo_batch(group: TrajectoryGroup) -> list[Term]:
    """Subtract the group's mean score and divide by the deviation of all scores of a training step."""
    return _centre(group)


@register_estimator(
    "gpg",
    formula="A[i,k] = B / #{j: S[j] ≠ 0} (S[i] - mean S of the group),  B the trajectories of the step",
    bias="slight in a small step, where a score that is not 0 shrinks its own scale; in a large one none",
    source="arXiv 2504.02546, reference verl",
    over_step=_by_share_of_scored,
)
def gpg(group: TrajectoryGroup) -> list[Term]:
    """Subtract the group's mean score and scale up by the share of scores in the step that are not 0."""
    return _centre(group)


@register_estimator(
    "gdpo",
    formula="A[i,k] = (x[i] - mean x) / sqrt(var x + eps) over all groups of the step,  "
    "x = Σ_c w_c z(c)[i],  c the sum of turn rewards, and the outcome or each of its named parts",
    bias="strong: normalising the parts apart replaces their weights by 1/std of each group",
    source="arXiv 2601.05242, references verl and TRL: normalize_then_sum",
    over_step=_whiten,
)
def gdpo(
    group: TrajectoryGroup,
    *,
    turn_weight: Annotated[float, Param("w of the sum of turn rewards", low=0, high=1e6)] = 1.0,
    outcome_weight: Annotated[float, Param("w of the outcome's parts", low=0, high=1e6)] = 1.0,
    group_eps: Annotated[float, Param("added to the deviation in a group", low=0, high=1)] = 1e-6,
) -> list[Term]:
    """Normalise each part of the reward in its group, then their sum over all groups of a training step.

    A trajectory without a part that others have is not compared in it.
    """
    parts: defaultdict[str | None, dict[int, float]] = defaultdict(dict)
    for index, (scored, each) in enumerate(zip(read(group), group.trajectories, strict=True)):
        if any(reward is not None for reward in scored.turns):
            parts[None][index] = scored.turn_sum
        if each.rewards and scored.outcome is not None:
            for name, value in each.rewards.outcome_parts.items():
                parts[name][index] = value
    terms: list[Term] = []
    for name, of in parts.items():
        pool = Pool([(index, None) for index in of], [*of.values()])
        term = minus_mean_unless_single(name or "turn rewards", pool, ddof=1, eps=group_eps)
        terms.append(replace(term, weight=turn_weight if name is None else outcome_weight))
    return terms or [minus_mean_unless_single("turn rewards", Pool((), ()))]


def _centre(group: TrajectoryGroup) -> list[Term]:
    return [minus_mean_unless_single("score", scores_of(read(group)))]
