"""The token rows of a credited group, each with the turns that were sampled in it and their advantages."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from environments.trajectory import IGNORED, CreditedGroup, Kept, Message, Span, Trajectory, Turn

Shown = dict[str, Any]
"""A message in OpenAI's shape."""


class RowMessages:
    """Made once for a trajectory; what it gives shares the messages, so do not change them."""

    def __init__(self, trajectory: Trajectory) -> None:
        """Write every message once.

        Raises:
            ValueError: a turn's message is not the assistant's, or a reply to it is.
        """
        self.all: list[Shown] = [message.to_openai() for message in trajectory.messages]
        """The whole conversation."""
        self._of_turn: list[int] = []
        """Per turn, the index of its message."""
        index = len(trajectory.prompt)
        for turn in trajectory.turns:
            if turn.message.role != "assistant" or any(each.role == "assistant" for each in turn.replies):
                raise ValueError(f"turn {turn.index} is no turn of role 'assistant' with answers to it")
            self._of_turn.append(index)
            index += 1 + len(turn.tool_results) + len(turn.replies)
        self._rewards = None if trajectory.rewards is None else trajectory.rewards.turns

    def of_turn(self, turn: Turn) -> Shown:
        return self.all[self._of_turn[turn.index]]

    def until(self, last: Turn, turns: Sequence[Turn], *, after: bool = False) -> list[Shown]:
        """What the model saw before a turn, and the turn's message.

        Args:
            last: the turn.
            turns: those of its row; with turn rewards, each of their messages carries its `reward`.
            after: whether what came after the turn is there as well.
        """
        end = self._of_turn[last.index]
        spoken = self.all[: None if after else end + 1]
        rewards = self._rewards or ()
        for turn in turns if rewards else ():
            index = self._of_turn[turn.index]
            spoken[index] = {**spoken[index], "reward": rewards[turn.index]}
        return spoken if last.context is None else [*_seen(last.context, spoken[:end]), *spoken[end:]]


def _seen(context: Sequence[Kept | Message], before: Sequence[Shown]) -> list[Shown]:
    seen: list[Shown] = []
    for part in context:
        seen += before[part.start : part.end] if isinstance(part, Kept) else [part.to_openai()]
    return seen


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
            tokens = list(row.token_ids)
            yield CreditedRow(
                trajectory=trajectory,
                turns=turns,
                conversation=conversation,
                messages=conversation.until(turns[-1], turns, after=is_last) if turns else conversation.all,
                tokens=tokens,
                mask=mask_of(tokens, spans),
                logprobs=None if row.logprobs is None else list(row.logprobs),
                turn_advantages=credit,
                advantages=spread(len(tokens), spans, credit),
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
