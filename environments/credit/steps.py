"""Estimators of step rewards: process supervision, and progress for rewards that score a state."""

from collections.abc import Sequence
from typing import Annotated

from environments.credit.estimator_registry import Advantages, register_estimator
from environments.credit.parameters import Param
from environments.credit.scored import Scored, read
from environments.credit.stats import deviation, mean, vary, z_scores
from environments.credit.terms import Compared, Explanation, Explanations, Term
from environments.trajectory import TrajectoryGroup


def _supervision_explained(group: TrajectoryGroup, *, gamma: float) -> Explanations:
    steps = [trajectory.steps for trajectory in read(group)]
    pool = tuple(
        Compared(trajectory=i, turn=turn, value=reward)
        for i, row in enumerate(steps)
        for turn, reward in enumerate(row)
        if reward is not None
    )
    values = [each.value for each in pool]
    centre = mean(values) if values else 0.0
    varied = bool(values) and vary(values)
    divisor = deviation(values, 0) if varied else None
    note = (
        "the baseline is the mean of all step rewards of the group, discounted, once for each scored turn "
        "from here on; divided by their standard deviation"
    )

    def explained(row: Sequence[float | None]) -> list[Explanation]:
        sums = _summed(row, gamma)
        levels = _summed([None if reward is None else centre for reward in row], gamma) if varied else sums
        return [
            Explanation(
                terms=(Term(name="return", value=value, baseline=level, divisor=divisor, pool=pool),),
                sums_forward=True,
                notes=(note,) if varied else ("the step rewards of the group do not vary",),
            )
            for value, level in zip(sums, levels, strict=True)
        ]

    return [explained(row) for row in steps]


def _progress_explained(group: TrajectoryGroup, *, gamma: float) -> Explanations:
    note = "progress of this turn and its share of later progress; nothing is compared"
    return [
        [Explanation(terms=(Term(name="progress", value=value),), notes=(note,)) for value in row]
        for row in (_smeared(trajectory, gamma) for trajectory in read(group))
    ]


@register_estimator(
    "process_supervision",
    formula="A[i,k] = sum_{l>=k} gamma^(l-k) z[i,l],  z the z-scores of all step rewards of the group",
    bias="depends on length: normalising before summing makes every further turn add (r - mean)/std",
    source="arXiv 2402.03300 section 4.1.3, reference NousResearch/atropos",
    explained=_supervision_explained,
)
def process_supervision(
    group: TrajectoryGroup,
    *,
    gamma: Annotated[float, Param("discount per turn", low=0, high=1)] = 1.0,
) -> Advantages:
    """Step rewards normalised over the whole group, then summed forward.

    The outcome is added to the last turn's reward; unscored turns stay out of the statistics and add 0.
    Where the rewards do not vary every advantage is 0 (the reference raises).

    Raises:
        CreditError: rewards that are missing, NaN or infinite.
    """
    steps = [trajectory.steps for trajectory in read(group)]
    rewards = [reward for row in steps for reward in row if reward is not None]
    normalised = iter(z_scores(rewards, ddof=0, eps=0.0) if rewards else ())
    z_rows = [tuple(None if reward is None else next(normalised) for reward in row) for row in steps]
    return [_summed(row, gamma) for row in z_rows]


@register_estimator(
    "progress",
    formula="A[i,k] = sum_{l>=k} p[i,l] gamma^(l-k) / sum_{d=0..l} gamma^d,  p[i,l] = s[i,l] - s before it",
    bias="no baseline, and an early turn gets a share of later progress instead of all of it",
    source="potential differences, Ng, Harada and Russell 1999; the smearing is Turnwise's own",
    explained=_progress_explained,
)
def progress(
    group: TrajectoryGroup,
    *,
    gamma: Annotated[float, Param("share that moves one turn back; 0: none", low=0, high=1)] = 0.5,
) -> Advantages:
    """For turn rewards that score the state after the turn: each turn's progress, smeared backwards.

    Progress is the difference to the last scored state, 0 before the first. Each piece is shared out over
    its turn and those before it with weights that sum to 1, so a trajectory's credit adds up to its last
    state score plus its outcome, which counts as progress of the last turn. What an unscored turn achieved
    shows in, and is shared out from, the next scored one.

    Raises:
        CreditError: rewards that are missing, NaN or infinite.
    """
    return [_smeared(trajectory, gamma) for trajectory in read(group)]


def _smeared(trajectory: Scored, gamma: float) -> list[float]:
    level, weights = 0.0, 0.0
    pieces: list[float] = []
    for index, score in enumerate(trajectory.turns):
        weights = 1.0 + gamma * weights
        gained = 0.0 if score is None else score - level
        level = level if score is None else score
        if index == len(trajectory.turns) - 1:
            gained += trajectory.outcome or 0.0
        pieces.append(gained / weights)
    return _summed(pieces, gamma)


def _summed(values: Sequence[float | None], gamma: float) -> list[float]:
    """The values summed forward, discounted."""
    return Scored(turns=tuple(values), outcome=None, score=0.0).returns(gamma)
