"""Credited groups whose trajectories have several token rows; every sampled token has an id of its own."""

from collections.abc import Sequence
from itertools import count

from environments.credit import credited
from environments.trajectory import (
    NOT_SAMPLED,
    CreditedGroup,
    Message,
    Rewards,
    Span,
    TokenRow,
    Trajectory,
    TrajectoryGroup,
    Turn,
)

FIRST_SAMPLED = 100
"""Smaller ids are context."""

Lengths = Sequence[Sequence[Sequence[int]]]
"""Sampled tokens, `[trajectory][row][turn]`."""


def forked_group(
    lengths: Lengths,
    rewards: Sequence[Sequence[float | None]] | None = None,
    *,
    outcomes: Sequence[float | None] | None = None,
    untrained: frozenset[tuple[int, int]] = frozenset(),
    summaries: frozenset[tuple[int, int]] = frozenset(),
) -> TrajectoryGroup:
    """A group as it is after a rollout whose history was rewritten before each new row.

    Args:
        lengths: of every turn; rows and turns are in the order of the trajectory.
        rewards: per trajectory, one per turn; `None`: a scalar environment, whose score is its outcome.
        outcomes: one per trajectory.
        untrained: turns that are left out of training, as (trajectory, turn).
        summaries: turns that are summaries, likewise.
    """
    ids = count(FIRST_SAMPLED)
    trajectories: list[Trajectory] = []
    for sibling, rows in enumerate(lengths):
        turns: list[Turn] = []
        token_rows: list[TokenRow] = []
        for row, sizes in enumerate(rows):
            tokens, logprobs = [1, 2], [NOT_SAMPLED] * 2
            for size in sizes:
                span = Span(row=row, start=len(tokens), end=len(tokens) + size)
                name = (sibling, len(turns))
                turns.append(
                    Turn(
                        index=len(turns),
                        kind="summary" if name in summaries else "act",
                        message=Message(role="assistant", content="said"),
                        replies=(Message(role="user", content="and?"),),
                        span=span,
                        trained=name not in untrained,
                    )
                )
                tokens += [*(next(ids) for _ in range(size)), 3]
                logprobs += [*[-0.5] * size, NOT_SAMPLED]
            token_rows.append(TokenRow(token_ids=tuple(tokens), logprobs=tuple(logprobs)))
        earned = None if rewards is None else tuple(rewards[sibling])
        outcome = None if outcomes is None else outcomes[sibling]
        parts = [part for part in (*(earned or ()), outcome) if part is not None]
        trajectories.append(
            Trajectory(
                item_id="item",
                sibling=sibling,
                prompt=(Message(role="user", content="go"),),
                turns=tuple(turns),
                rows=tuple(token_rows),
                rewards=Rewards(turns=earned, outcome=outcome, score=sum(parts) if parts else None),
            )
        )
    return TrajectoryGroup(group_id="g1", item_id="item", trajectories=tuple(trajectories))


def with_credit(group: TrajectoryGroup, estimator: str = "turn_return", **params: object) -> CreditedGroup:
    """The group as the estimator credits it."""
    return credited(group, estimator, policy="p", params=params)


def advantage_of_token(group: CreditedGroup) -> dict[int, float]:
    """The advantage of the turn of every token that is trained, by the token's id."""
    found: dict[int, float] = {}
    for trajectory, advantages in zip(group.group.trajectories, group.advantages, strict=True):
        for turn, advantage in zip(trajectory.turns, advantages, strict=True):
            if turn.trained:
                tokens = trajectory.rows[turn.span.row].token_ids
                found |= dict.fromkeys(tokens[turn.span.start : turn.span.end], advantage)
    return found
