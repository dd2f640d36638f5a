"""Rows for the trainer, in Atropos' columns: one view of a group's credit for each kind of trainer.

Speaks the format of Atropos' `ScoredDataGroup` without importing it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from environments.trajectory import IGNORED, NOT_SAMPLED, CreditedGroup, Span, Trajectory, Turn

Columns = dict[str, Any]
"""A `ScoredDataGroup`: each column holds one entry per row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRow:
    """One token sequence with everything a trainer needs to learn from it."""

    trajectory: int
    """Position of its trajectory in the group."""
    turns: tuple[Turn, ...]
    """The turns that were sampled in this row."""
    tokens: list[int]
    masks: list[int]
    """The token id where the token was sampled, `IGNORED` elsewhere."""
    logprobs: list[float] | None
    turn_advantages: list[float]
    """One per turn of this row."""
    advantages: list[float]
    """One per token: its turn's advantage over the turn's span, 0 elsewhere."""


def training_rows(credited: CreditedGroup) -> Iterator[TrainingRow]:
    """Every row of the group, in the order of trajectories and rows."""
    for position, (trajectory, advantages) in enumerate(
        zip(credited.group.trajectories, credited.advantages, strict=True)
    ):
        for index, row in enumerate(trajectory.rows):
            here = [
                (turn, advantage)
                for turn, advantage in zip(trajectory.turns, advantages, strict=True)
                if turn.span.row == index
            ]
            spans = [turn.span for turn, _ in here]
            credit = [advantage for _, advantage in here]
            yield TrainingRow(
                trajectory=position,
                turns=tuple(turn for turn, _ in here),
                tokens=list(row.token_ids),
                masks=mask_of(row.token_ids, spans),
                logprobs=None if row.logprobs is None else list(row.logprobs),
                turn_advantages=credit,
                advantages=spread(len(row.token_ids), spans, credit),
            )


def mask_of(token_ids: Sequence[int], spans: Sequence[Span]) -> list[int]:
    """Labels for the trainer: the id inside the spans, `IGNORED` outside."""
    mask = [IGNORED] * len(token_ids)
    for span in spans:
        mask[span.start : span.end] = token_ids[span.start : span.end]
    return mask


def spread(length: int, spans: Sequence[Span], advantages: Sequence[float]) -> list[float]:
    """Per-token advantages: each turn's value over its span, 0.0 elsewhere."""
    tokens = [0.0] * length
    for span, advantage in zip(spans, advantages, strict=True):
        tokens[span.start : span.end] = [advantage] * (span.end - span.start)
    return tokens


def token_advantages(credited: CreditedGroup) -> Columns:
    """The view for the trajectory API: a scalar score per row, and per-token advantages.

    A group without turn rewards carries neither advantages nor overrides: it is plain scalar GRPO data.
    """
    rows = list(training_rows(credited))
    columns = _columns(credited, rows, [credited.group.trajectories[row.trajectory].score for row in rows])
    if not _has_turn_rewards(credited):
        columns |= {"advantages": None, "overrides": None, "group_overrides": {}}
    return columns


def turn_rows(credited: CreditedGroup) -> list[Columns]:
    """The view for trainers that read only `scores`: one row per turn, each in a group of its own.

    A row is everything the model saw up to the turn, and the turn, which alone is unmasked; its score is
    the turn's advantage. Atropos' example trainer keeps the score of a one-row group raw, so its gradient
    is the turn-level policy gradient (each turn's loss averaged over the turn's tokens).
    """
    return _row_per_turn(credited, alone=True)


def prefix_rows(credited: CreditedGroup) -> list[Columns]:
    """N turns become N rows "up to turn K" with all their turns unmasked; the score is turn K's advantage.

    The idea of verifiers' issue 34. It counts double: a turn is trained once in every row that reaches it,
    so its tokens get the sum of its own and all later advantages of the trajectory.
    """
    return _row_per_turn(credited, alone=False)


def list_scores(credited: CreditedGroup) -> Columns:
    """The view for people and offline tools: with turn rewards, `scores` holds a list per row."""
    trajectories = credited.group.trajectories
    rows = list(training_rows(credited))
    return _columns(credited, rows, [_scores(trajectories[row.trajectory], row) for row in rows])


VIEWS: Mapping[str, Callable[[CreditedGroup], list[Columns]]] = {
    "token_advantages": lambda credited: [token_advantages(credited)],
    "turn_rows": turn_rows,
    "prefix_rows": prefix_rows,
    "list_scores": lambda credited: [list_scores(credited)],
}
"""Every view by name; each gives the groups that a trainer would see."""


def chat(trajectory: Trajectory, *, until: int | None = None) -> list[dict[str, Any]]:
    """The conversation in OpenAI's shape; with turn rewards each assistant message carries its `reward`.

    Args:
        trajectory: what was said.
        until: index of the turn whose assistant message is the last one.
    """
    rewards = None if trajectory.rewards is None else trajectory.rewards.turns
    messages = [message.to_openai() for message in trajectory.messages]
    spoken = [
        place
        for place, message in enumerate(messages)
        if place >= len(trajectory.prompt) and message["role"] == "assistant"
    ]
    if rewards is not None:
        for place, reward in zip(spoken, rewards, strict=True):
            messages[place]["reward"] = reward
    return messages if until is None else messages[: spoken[until] + 1]


def _columns(credited: CreditedGroup, rows: Sequence[TrainingRow], scores: list[Any]) -> Columns:
    trajectories = credited.group.trajectories
    known = all(row.logprobs is not None for row in rows)
    return {
        "tokens": [row.tokens for row in rows],
        "masks": [row.masks for row in rows],
        "scores": scores,
        "advantages": [row.advantages for row in rows],
        "ref_logprobs": None,
        "messages": [chat(trajectories[row.trajectory]) for row in rows],
        "generation_params": None,
        "inference_logprobs": [row.logprobs for row in rows] if known else None,
        "group_overrides": {"group_size": len(rows)},
        "overrides": [_override(credited, row, number) for number, row in enumerate(rows)],
        "images": None,
    }


def _row_per_turn(credited: CreditedGroup, *, alone: bool) -> list[Columns]:
    rows = (
        _ending_with(row, place, alone=alone) for row in training_rows(credited) for place in _sampled(row)
    )
    return [_one_row(credited, row, number) for number, row in enumerate(rows)]


def _one_row(credited: CreditedGroup, row: TrainingRow, number: int) -> Columns:
    """A row as a group of its own, scored with the advantage of its last turn."""
    last = row.turns[-1]
    columns = _columns(credited, [row], [row.turn_advantages[-1]])
    return columns | {
        "advantages": None,
        "messages": [chat(credited.group.trajectories[row.trajectory], until=last.index)],
        "overrides": [_override(credited, row, number)],
    }


def _sampled(row: TrainingRow) -> Iterator[int]:
    """Places of the turns that have tokens to train."""
    return (place for place, turn in enumerate(row.turns) if turn.span.end > turn.span.start)


def _ending_with(row: TrainingRow, place: int, *, alone: bool) -> TrainingRow:
    """The row up to its turn at `place`, with only that turn unmasked or with every turn so far."""
    last = row.turns[place].span
    first = place if alone else 0
    start = last.start if alone else 0
    tokens = row.tokens[: last.end]
    logprobs = row.logprobs
    return replace(
        row,
        turns=row.turns[first : place + 1],
        tokens=tokens,
        masks=mask_of(tokens, [turn.span for turn in row.turns[first : place + 1]]),
        logprobs=None if logprobs is None else [NOT_SAMPLED] * start + logprobs[start : last.end],
        turn_advantages=row.turn_advantages[first : place + 1],
        advantages=row.advantages[: last.end],
    )


def _override(credited: CreditedGroup, row: TrainingRow, number: int) -> dict[str, Any]:
    trajectory = credited.group.trajectories[row.trajectory]
    rewards = trajectory.rewards
    given = (
        None
        if rewards is None or rewards.turns is None
        else [rewards.turns[turn.index] for turn in row.turns]
    )
    return {
        "group_id": credited.group.group_id,
        "row": number,
        "turn_rewards": given,
        "outcome": None if rewards is None else rewards.outcome,
        "turn_spans": [[turn.span.start, turn.span.end] for turn in row.turns],
        "turn_advantages": row.turn_advantages,
    }


def _scores(trajectory: Trajectory, row: TrainingRow) -> float | list[float | None]:
    rewards = trajectory.rewards
    if rewards is None or rewards.turns is None:
        return trajectory.score
    return [rewards.turns[turn.index] for turn in row.turns]


def _has_turn_rewards(credited: CreditedGroup) -> bool:
    return any(t.rewards is not None and t.rewards.turns is not None for t in credited.group.trajectories)
