"""The token rows of a credited group, each with the turns that were sampled in it and their advantages."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from environments.trajectory import IGNORED, CreditedGroup, Span, Trajectory, Turn
from environments.wire.row_messages import RowMessages, Shown


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditedRow:
    """One token row of a trajectory, with its credit per turn and per token."""

    trajectory: Trajectory
    turns: tuple[Turn, ...]
    """The turns that were sampled in this row."""
    conversation: RowMessages
    """Of the trajectory."""
    messages: list[Shown]
    """Those that the row holds; of a trajectory's last row also what came after its last turn."""
    tokens: list[int]
    mask: list[int]
    """The token id where a trained turn was sampled, `IGNORED` elsewhere."""
    logprobs: list[float] | None
    turn_advantages: list[float]
    """One per turn of this row."""
    advantages: list[float]
    """One per token: its turn's advantage over the turn's span, 0 elsewhere."""


def credited_rows(credited: CreditedGroup) -> Iterator[CreditedRow]:
    """Every row of the group, in the order of trajectories and rows."""
    for trajectory, advantages in zip(credited.group.trajectories, credited.advantages, strict=True):
        conversation = RowMessages(trajectory)
        of_row: defaultdict[int, list[tuple[Turn, float]]] = defaultdict(list)
        for turn, advantage in zip(trajectory.turns, advantages, strict=True):
            of_row[turn.span.row].append((turn, advantage))
        for index, row in enumerate(trajectory.rows):
            here = of_row[index]
            turns = tuple(turn for turn, _ in here)
            spans = [trained_span(turn) for turn in turns]
            credit = [advantage for _, advantage in here]
            is_last = index == len(trajectory.rows) - 1
            yield CreditedRow(
                trajectory=trajectory,
                turns=turns,
                conversation=conversation,
                messages=conversation.until(turns[-1], turns, after=is_last) if turns else conversation.all,
                tokens=list(row.token_ids),
                mask=mask_of(row.token_ids, spans),
                logprobs=None if row.logprobs is None else list(row.logprobs),
                turn_advantages=credit,
                advantages=spread(len(row.token_ids), spans, credit),
            )


def trained_span(turn: Turn) -> Span:
    """The tokens of a turn that are trained: those that were sampled, or none, where the turn began."""
    return turn.span if turn.trained else replace(turn.span, end=turn.span.start)


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
