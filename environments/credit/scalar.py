"""Estimators of the trajectory's score: every turn of a trajectory gets the same advantage."""

from collections.abc import Sequence
from typing import Annotated, Literal

from environments.credit.estimator_registry import Advantages, register_estimator
from environments.credit.parameters import Param
from environments.credit.scored import Scored, each_trained, read
from environments.credit.stats import centred, means_of_others, vary, z_scores
from environments.credit.terms import Compared, Explanation, Explanations, Term, normalised
from environments.trajectory import TrajectoryGroup
from tools.errors import CreditError

Singleton = Literal["zero", "raw", "error"]


def _without_peer(group: TrajectoryGroup, *, singleton: Singleton, **_: object) -> list[list[bool]]:
    alone = len(group.trajectories) == 1 and singleton == "raw"
    return [[each and alone for each in row] for row in each_trained(group)]


def _grpo_explained(
    group: TrajectoryGroup, *, norm_by_std: bool, ddof: int, eps: float, singleton: Singleton, **_: object
) -> Explanations:
    scores = _scores(group)
    if len(scores) == 1:
        return _alone_explained(group, scores[0], singleton, 1.0 + eps if norm_by_std else None)
    notes = ("divided by the standard deviation of the scores",) if norm_by_std else ()
    return _on_turns(normalised("score", scores, ddof=ddof, eps=eps, by_std=norm_by_std), group, notes)


def _rloo_explained(group: TrajectoryGroup, *, singleton: Singleton) -> Explanations:
    scores = _scores(group)
    if len(scores) == 1:
        return _alone_explained(group, scores[0], singleton, None)
    others = means_of_others([each.value for each in scores]) if scores else []
    pool = tuple(scores)
    terms = [
        Term(name="score", value=own.value, baseline=other, pool=pool, own=own)
        for own, other in zip(scores, others, strict=True)
    ]
    return _on_turns(terms, group)


def _scores(group: TrajectoryGroup) -> list[Compared]:
    return [Compared(trajectory=i, turn=None, value=each.score) for i, each in enumerate(read(group))]


def _alone_explained(
    group: TrajectoryGroup, score: Compared, singleton: Singleton, divisor: float | None
) -> Explanations:
    if singleton == "raw":
        term = Term(name="score", value=score.value, divisor=divisor)
        return _on_turns([term], group, ("no sibling to compare it with: the advantage is the raw score",))
    return [
        [Explanation(notes=("no sibling to compare it with: no advantage",))]
        * len(group.trajectories[0].turns)
    ]


def _on_turns(terms: Sequence[Term], group: TrajectoryGroup, notes: tuple[str, ...] = ()) -> Explanations:
    return [
        [Explanation(terms=(term,), notes=notes)] * len(trajectory.turns)
        for term, trajectory in zip(terms, group.trajectories, strict=True)
    ]


@register_estimator(
    "grpo",
    formula="A[i,k] = (S[i] - mean S) / (std S + eps),  S the trajectory's score",
    bias="with std: groups weigh 1/std, so rare successes and near-ties count most; "
    "without (Dr. GRPO): none, shrunk by (G-1)/G",
    source="arXiv 2402.03300; without std arXiv 2503.20783",
    without_peer=_without_peer,
    explained=_grpo_explained,
)
def grpo(
    group: TrajectoryGroup,
    *,
    norm_by_std: Annotated[bool, Param("divide by the group's standard deviation")] = True,
    ddof: Annotated[int, Param("1: sample deviation, 0: population deviation", low=0, high=1)] = 1,
    eps: Annotated[float, Param("added to the deviation", low=0, high=1)] = 1e-6,
    singleton: Annotated[
        Singleton, Param("a group of one: no advantage, its raw score, or an error")
    ] = "zero",
    zero_variance: Annotated[
        Literal["zero", "error"], Param("a group whose scores do not vary: no advantage, or an error")
    ] = "zero",
) -> Advantages:
    """Trajectory score normalised in its group, the same for every turn.

    Raises:
        CreditError: rewards that are missing, NaN or infinite, or a group that `singleton` or
            `zero_variance` refuse.
    """
    scored = read(group)
    scores = [trajectory.score for trajectory in scored]
    if len(scores) == 1:
        return _on_every_turn([_alone(scores[0], singleton) / (1.0 + (eps if norm_by_std else 0.0))], scored)
    if scores and zero_variance == "error" and not vary(scores):
        raise CreditError(
            f"every score of the group is {scores[0]:g}; zero_variance='zero' gives it no advantage"
        )
    if not scores:
        return []
    return _on_every_turn(z_scores(scores, ddof=ddof, eps=eps) if norm_by_std else centred(scores), scored)


@register_estimator(
    "rloo",
    formula="A[i,k] = S[i] - mean_{j≠i} S[j],  S the trajectory's score",
    bias="none; a turn also carries what came before it, which is only noise",
    source="arXiv 2402.14740",
    without_peer=_without_peer,
    explained=_rloo_explained,
)
def rloo(
    group: TrajectoryGroup,
    *,
    singleton: Annotated[
        Singleton, Param("a group of one: no advantage, its raw score, or an error")
    ] = "zero",
) -> Advantages:
    """Trajectory score minus the mean of the others, the same for every turn.

    Raises:
        CreditError: rewards that are missing, NaN or infinite, or a group of one that `singleton` refuses.
    """
    scored = read(group)
    scores = [trajectory.score for trajectory in scored]
    if len(scores) == 1:
        return _on_every_turn([_alone(scores[0], singleton)], scored)
    if not scores:
        return []
    others = means_of_others(scores)
    return _on_every_turn([own - other for own, other in zip(scores, others, strict=True)], scored)


def _alone(score: float, singleton: Singleton) -> float:
    if singleton == "error":
        raise CreditError("the group has one trajectory; singleton='zero' gives it no advantage")
    return score if singleton == "raw" else 0.0


def _on_every_turn(values: Sequence[float], scored: Sequence[Scored]) -> Advantages:
    return [[value] * len(trajectory.turns) for value, trajectory in zip(values, scored, strict=True)]
