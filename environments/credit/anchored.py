"""GiGPO: an episode advantage plus an advantage among turns that began in the same anchor state."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Literal

from environments.credit.estimator_registry import Advantages, register_estimator
from environments.credit.parameters import Param
from environments.credit.scored import Scored, each_trained, read
from environments.credit.stats import centred, z_scores
from environments.credit.terms import Compared, Explanation, Explanations, Term, normalised
from environments.trajectory import TrajectoryGroup
from tools.errors import CreditError

Mode = Literal["mean_norm", "mean_std_norm"]


def _without_peer(group: TrajectoryGroup, *, episode_stats: str, **_: object) -> list[list[bool]]:
    trained = each_trained(group)
    alone = episode_stats == "rows" and sum(map(len, trained)) == 1
    return [[each and alone for each in row] for row in trained]


def _explained(
    group: TrajectoryGroup,
    *,
    gamma: float,
    step_weight: float,
    mode: Mode,
    episode_stats: str,
    eps: float,
) -> Explanations:
    scored = read(group)

    def terms(name: str, pool: Sequence[Compared]) -> list[Term]:
        return normalised(name, pool, ddof=1, eps=eps, by_std=mode == "mean_std_norm")

    copies = [len(each.turns) if episode_stats == "rows" else 1 for each in scored]
    scores = [
        Compared(trajectory=i, turn=None, value=each.score)
        for i, (each, count) in enumerate(zip(scored, copies, strict=True))
        for _ in range(count)
    ]
    wholes = {each.trajectory: term for each, term in zip(scores, terms("score", scores), strict=True)}
    notes: tuple[str, ...] = ()
    if episode_stats == "rows" and len(scores) == 1:
        divisor = None if mode == "mean_norm" else 1.0 + eps
        wholes = {each.trajectory: Term(name="score", value=each.value, divisor=divisor) for each in scores}
        notes = ("no other turn to compare the score with: it stays raw",)
    members: defaultdict[str, list[Compared]] = defaultdict(list)
    states = _states(group)
    for i, each in enumerate(scored):
        for turn, (state, value) in enumerate(zip(states[i], each.returns(gamma), strict=True)):
            if state is not None:
                members[state].append(Compared(trajectory=i, turn=turn, value=value))
    steps = {
        (each.trajectory, each.turn): replace(term, weight=step_weight)
        for pool in members.values()
        for each, term in zip(pool, terms("return from equal states", pool), strict=True)
    }

    def explained(i: int, turn: int) -> Explanation:
        step = steps.get((i, turn))
        lone = step is not None and len(step.pool) == 1
        return Explanation(
            terms=(wholes[i],) if step is None or lone else (wholes[i], step),
            notes=notes + (("no other turn began in its state",) if lone else ()),
        )

    return [[explained(i, turn) for turn in range(len(each.turns))] for i, each in enumerate(scored)]


@register_estimator(
    "gigpo",
    formula="A[i,k] = norm(S)[i] + w * norm(R[j,l] for every turn with the state of turn (i,k))[i,k],  "
    "R the return-to-go",
    bias="slight: a state group's size depends on the policy's own actions; more with mean_std_norm, with "
    "episode_stats=rows, and where one state hides different histories",
    source="arXiv 2505.10978, reference langfengQ/verl-agent",
    without_peer=_without_peer,
    explained=_explained,
)
def gigpo(
    group: TrajectoryGroup,
    *,
    gamma: Annotated[float, Param("discount per turn", low=0, high=1)] = 0.95,
    step_weight: Annotated[float, Param("w, the weight of the state advantage", low=0, high=1e6)] = 1.0,
    mode: Annotated[Mode, Param("norm: subtract the mean, or also divide by deviation + eps")] = "mean_norm",
    episode_stats: Annotated[
        Literal["trajectory", "rows"],
        Param("statistics of S over trajectories, or over turns as verl-agent does (a lone turn stays raw)"),
    ] = "trajectory",
    eps: Annotated[float, Param("added to the deviation", low=0, high=1)] = 1e-6,
) -> Advantages:
    """Episode advantage plus advantage within groups of equal anchor state, at any time in any sibling.

    A state that occurs once adds nothing; without any anchor state only the episode term is left.

    Raises:
        CreditError: rewards that are missing, NaN or infinite, or anchor states on some turns only.
    """

    def norm(values: Sequence[float]) -> list[float]:
        return centred(values) if mode == "mean_norm" else z_scores(values, ddof=1, eps=eps)

    scored = read(group)
    states = _states(group)
    episode = _trajectory_level(scored, norm, per_row=episode_stats == "rows")
    if episode_stats == "rows" and sum(len(row) for row in episode) == 1:
        raw = next(trajectory.score for trajectory in scored if trajectory.turns)
        episode = [[raw if mode == "mean_norm" else raw / (1.0 + eps)] * len(row) for row in episode]
    step = _step([trajectory.returns(gamma) for trajectory in scored], states, norm)
    return [
        [whole + step_weight * part for whole, part in zip(*rows, strict=True)]
        for rows in zip(episode, step, strict=True)
    ]


def _trajectory_level(
    scored: Sequence[Scored], norm: Callable[[Sequence[float]], list[float]], *, per_row: bool
) -> Advantages:
    counts = [len(trajectory.turns) for trajectory in scored]
    if not per_row:
        values = norm([trajectory.score for trajectory in scored]) if scored else []
        return [[value] * count for value, count in zip(values, counts, strict=True)]
    rows = [trajectory.score for trajectory in scored for _ in trajectory.turns]
    values = iter(norm(rows) if rows else ())
    return [[next(values) for _ in range(count)] for count in counts]


def _step(
    returns: Sequence[Sequence[float]],
    states: Sequence[Sequence[str | None]],
    norm: Callable[[Sequence[float]], list[float]],
) -> Advantages:
    advantages = [[0.0] * len(row) for row in returns]
    members: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for index, row in enumerate(states):
        for turn, state in enumerate(row):
            if state is not None:
                members[state].append((index, turn))
    for members_of_state in members.values():
        values = norm([returns[index][turn] for index, turn in members_of_state])
        for (index, turn), value in zip(members_of_state, values, strict=True):
            advantages[index][turn] = value
    return advantages


def _states(group: TrajectoryGroup) -> list[list[str | None]]:
    states = [[turn.anchor for turn in trajectory.turns] for trajectory in group.trajectories]
    if any(state is not None for row in states for state in row):
        for index, row in enumerate(states):
            if None in row:
                raise CreditError(
                    f"trajectory {index}, turn {row.index(None) + 1} has no anchor state while other turns "
                    "have one; state_key must give one for every turn of the group, or for none"
                )
    return states
