"""Rows for the trainer: tokens, masks, log-probabilities and per-token advantages, in Atropos' columns.

Speaks the format of Atropos' `ScoredDataGroup` without importing it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from environments.trajectory import IGNORED, CreditedGroup, Span, Trajectory, Turn

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
    columns = _columns(
        credited, [credited.group.trajectories[row.trajectory].score for row in _rows(credited)]
    )
    if not _has_turn_rewards(credited):
        columns |= {"advantages": None, "overrides": None}
    return columns


def list_scores(credited: CreditedGroup) -> Columns:
    """The view for people and offline tools: with turn rewards, `scores` holds a list per row."""
    trajectories = credited.group.trajectories
    return _columns(credited, [_scores(trajectories[row.trajectory], row) for row in _rows(credited)])


def chat(trajectory: Trajectory) -> list[dict[str, Any]]:
    """The conversation in OpenAI's shape; with turn rewards each assistant message carries its `reward`."""
    rewards = None if trajectory.rewards is None else trajectory.rewards.turns
    messages = [message.to_openai() for message in trajectory.messages]
    if rewards is not None:
        spoken = [message for message in messages[len(trajectory.prompt) :] if message["role"] == "assistant"]
        for message, reward in zip(spoken, rewards, strict=True):
            message["reward"] = reward
    return messages


def _columns(credited: CreditedGroup, scores: list[Any]) -> Columns:
    rows = _rows(credited)
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
        "group_overrides": {},
        "overrides": [_override(credited, row) for row in rows],
        "images": None,
    }


def _override(credited: CreditedGroup, row: TrainingRow) -> dict[str, Any]:
    trajectory = credited.group.trajectories[row.trajectory]
    rewards = trajectory.rewards
    given = (
        None
        if rewards is None or rewards.turns is None
        else [rewards.turns[turn.index] for turn in row.turns]
    )
    return {
        "group_id": credited.group.group_id,
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


def _rows(credited: CreditedGroup) -> list[TrainingRow]:
    return list(training_rows(credited))
