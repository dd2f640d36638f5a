"""Views of a group's credit: the rows that a trainer gets, one view for each kind of trainer."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, cast

from environments.trajectory import NOT_SAMPLED, CreditedGroup
from environments.wire.credited_rows import CreditedRow, credited_rows, mask_of, trained_span
from environments.wire.training_rows import RowGroup, TrainingRow

TOKENS_PER_TURN = 1024
"""Divisor of scores where none is set: the default of `max_tokens_per_turn`."""

Divisor = int | Literal["own_length"]
"""What a row's trained tokens are divided by, to scale its score, one constant for a run. `own_length`: not
scaled, so a turn weighs 1/its own length, which the policy chooses: short turns are preferred where the
advantage is positive, long ones where it is negative."""


def every_row(credited: CreditedGroup) -> RowGroup:
    """All that is known: every row with its trajectory's score, its credit, its names and rewards."""
    rows = list(credited_rows(credited))
    known = all(row.logprobs is not None for row in rows)
    return RowGroup(
        rows=tuple(
            TrainingRow(
                tokens=row.tokens,
                mask=row.mask,
                # `None` where nothing was scored: a row for people, which `check_rows` lets no trainer have.
                score=cast("float", row.trajectory.score),
                advantages=row.advantages,
                logprobs=row.logprobs if known else None,
                messages=row.messages,
                override=_override(credited, row, index),
            )
            for index, row in enumerate(rows)
        )
    )


def token_advantages(credited: CreditedGroup) -> RowGroup:
    """The view for the trajectory API: a scalar score per row, and per-token advantages.

    A group without turn rewards carries neither advantages nor overrides: it is plain scalar GRPO data.
    """
    group = every_row(credited)
    if any(t.rewards is not None and t.rewards.turns is not None for t in credited.group.trajectories):
        return group
    bare = tuple(replace(row, advantages=None, override=None) for row in group.rows)
    return RowGroup(rows=bare, plain=True)


def turn_rows(credited: CreditedGroup, divisor: Divisor = TOKENS_PER_TURN) -> list[RowGroup]:
    """The view for trainers that read only `scores`: one row per turn, each in a group of its own.

    A row is everything the model saw up to the turn, and the turn, which alone is unmasked. Atropos' example
    trainer keeps the score of a one-row group as it is, and averages a row over its trained tokens. So a
    score is the turn's advantage times its tokens over `divisor`: the step is the policy gradient
    Σ A ∇log π over `divisor` and the rows of the batch.
    """
    return _row_per_turn(credited, divisor, alone=True)


def prefix_rows(credited: CreditedGroup, divisor: Divisor = TOKENS_PER_TURN) -> list[RowGroup]:
    """N turns become N rows "up to turn K" with all trained turns unmasked, scored with turn K's advantage.

    The idea of verifiers' issue 34. It counts double: a turn is trained once in every row that reaches it,
    so its tokens get the sum of its own and all later advantages of the trajectory. Scores are scaled as in
    `turn_rows`, by all trained tokens of the row, so that this is the only bias.
    """
    return _row_per_turn(credited, divisor, alone=False)


def _one_group(credited: CreditedGroup, _: Divisor = TOKENS_PER_TURN) -> list[RowGroup]:
    return [token_advantages(credited)]


VIEWS: Mapping[str, Callable[..., Sequence[RowGroup]]] = {
    "token_advantages": _one_group,
    "turn_rows": turn_rows,
    "prefix_rows": prefix_rows,
}
"""Every view by name: `VIEWS[name](credited, divisor)` gives the groups that a trainer would see."""


def _row_per_turn(credited: CreditedGroup, divisor: Divisor, *, alone: bool) -> list[RowGroup]:
    rows = (_ending_with(row, turn, alone=alone) for row in credited_rows(credited) for turn in _trained(row))
    return [RowGroup(rows=(_of_last_turn(credited, row, index, divisor),)) for index, row in enumerate(rows)]


def _of_last_turn(credited: CreditedGroup, row: CreditedRow, index: int, divisor: Divisor) -> TrainingRow:
    """A row that is scored with the advantage of its last turn."""
    trained = sum(span.end - span.start for span in map(trained_span, row.turns))
    advantage = row.turn_advantages[-1]
    return TrainingRow(
        tokens=row.tokens,
        mask=row.mask,
        score=advantage if divisor == "own_length" else advantage * trained / divisor,
        advantages=None,
        logprobs=row.logprobs,
        messages=row.messages,
        override=_override(credited, row, index) | {"score_divisor": divisor},
    )


def _trained(row: CreditedRow) -> Iterator[int]:
    """The turns of a row that have tokens to train."""
    spans = map(trained_span, row.turns)
    return (index for index, span in enumerate(spans) if span.end > span.start)


def _ending_with(row: CreditedRow, index: int, *, alone: bool) -> CreditedRow:
    """The row up to one of its turns, with only that turn unmasked or with every turn so far."""
    last = row.turns[index].span
    first = index if alone else 0
    start = last.start if alone else 0
    tokens = row.tokens[: last.end]
    logprobs = row.logprobs
    return replace(
        row,
        turns=row.turns[first : index + 1],
        messages=row.conversation.until(row.turns[index], row.turns[: index + 1]),
        tokens=tokens,
        mask=mask_of(tokens, list(map(trained_span, row.turns[first : index + 1]))),
        logprobs=None if logprobs is None else [NOT_SAMPLED] * start + logprobs[start : last.end],
        turn_advantages=row.turn_advantages[first : index + 1],
        advantages=row.advantages[: last.end],
    )


def _override(credited: CreditedGroup, row: CreditedRow, index: int) -> dict[str, Any]:
    rewards = row.trajectory.rewards
    by_turn = None if rewards is None else rewards.turns
    kinds = [turn.kind for turn in row.turns]
    return {
        "group_id": credited.group.group_id,
        "row": index,
        "turn_rewards": None if by_turn is None else [by_turn[turn.index] for turn in row.turns],
        "outcome": None if rewards is None else rewards.outcome,
        "turn_spans": [[span.start, span.end] for span in map(trained_span, row.turns)],
        "turn_advantages": row.turn_advantages,
        **({"turn_kinds": kinds} if "summary" in kinds else {}),
    }
