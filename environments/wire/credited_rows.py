"""The token rows of a credited group with their turns and advantages."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from environments.trajectory import IGNORED, CreditedGroup, Kept, Span, Trajectory, Turn

OpenAIMessage = dict[str, Any]


class RowMessages:
    """The messages of a trajectory in OpenAI's shape; they are shared, so do not modify them."""

    def __init__(self, trajectory: Trajectory) -> None:
        """Convert every message once.

        Raises:
            ValueError: if a turn's message is not the assistant's, or a reply is.
        """
        self.all: list[OpenAIMessage] = [message.to_openai() for message in trajectory.messages]
        self._of_turn: list[int] = []
        index = len(trajectory.prompt)
        for turn in trajectory.turns:
            if turn.message.role != "assistant" or any(each.role == "assistant" for each in turn.replies):
                raise ValueError(f"turn {turn.index} is not a turn of role 'assistant' with answers to it")
            self._of_turn.append(index)
            index += 1 + len(turn.tool_results) + len(turn.replies)
        self._rewards = None if trajectory.rewards is None else trajectory.rewards.turns

    def of_turn(self, turn: Turn) -> OpenAIMessage:
        return self.all[self._of_turn[turn.index]]

    def until(self, last: Turn, turns: Sequence[Turn], *, after: bool = False) -> list[OpenAIMessage]:
        """Return what the model saw before the turn `last`, and the turn's message.

        With turn rewards, messages of `turns` get a `reward`. `after` adds all later messages.
        """
        end = self._of_turn[last.index]
        spoken = self.all[: None if after else end + 1]
        rewards = self._rewards or ()
        for turn in turns if rewards else ():
            index = self._of_turn[turn.index]
            spoken[index] = {**spoken[index], "reward": rewards[turn.index]}
        if last.context is None:
            return spoken
        before, seen = spoken[:end], list[OpenAIMessage]()
        for part in last.context:
            seen += before[part.start : part.end] if isinstance(part, Kept) else [part.to_openai()]
        return [*seen, *spoken[end:]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditedRow:
    trajectory: Trajectory
    turns: tuple[Turn, ...]
    conversation: RowMessages
    messages: list[OpenAIMessage]
    """The row's messages; a trajectory's last row includes those after its last turn."""
    tokens: list[int]
    mask: list[int]
    logprobs: list[float] | None
    turn_advantages: list[float]
    advantages: list[float]
    """One per token: its turn's advantage, 0 outside of turns."""


def credited_rows(credited: CreditedGroup) -> Iterator[CreditedRow]:
    for trajectory, advantages in zip(credited.group.trajectories, credited.advantages, strict=True):
        conversation = RowMessages(trajectory)
        of_row: defaultdict[int, list[tuple[Turn, float]]] = defaultdict(list)
        for turn, advantage in zip(trajectory.turns, advantages, strict=True):
            of_row[turn.span.row].append((turn, advantage))
        for index, row in enumerate(trajectory.rows):
            here = of_row[index]
            turns = tuple(turn for turn, _ in here)
            spans = [span_to_train(turn) for turn in turns]
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
                advantages=spread_over_tokens(len(tokens), spans, credit),
            )


def span_to_train(turn: Turn) -> Span:
    return turn.span if turn.trained else replace(turn.span, end=turn.span.start)


def mask_of(token_ids: Sequence[int], spans: Sequence[Span]) -> list[int]:
    mask = [IGNORED] * len(token_ids)
    for span in spans:
        mask[span.start : span.end] = token_ids[span.start : span.end]
    return mask


def spread_over_tokens(length: int, spans: Sequence[Span], advantages: Sequence[float]) -> list[float]:
    tokens = [0.0] * length
    for span, advantage in zip(spans, advantages, strict=True):
        tokens[span.start : span.end] = [advantage] * (span.end - span.start)
    return tokens
