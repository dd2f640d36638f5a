"""The messages of a trajectory in OpenAI's shape: all of them, and those that one of its token rows holds."""

from collections.abc import Mapping, Sequence
from typing import Any

from environments.trajectory import Kept, Message, Trajectory, Turn

Shown = dict[str, Any]
"""A message in OpenAI's shape."""


class RowMessages:
    """Made once for a trajectory; what it gives shares the messages, so do not change them."""

    def __init__(self, trajectory: Trajectory) -> None:
        """Write every message once.

        Raises:
            ValueError: somebody else than the assistant speaks in a turn, or answers it as the assistant.
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
        """A turn's own message, as `all` has it."""
        return self.all[self._of_turn[turn.index]]

    def until(self, last: Turn, turns: Sequence[Turn], *, after: bool = False) -> list[Shown]:
        """What the model saw before a turn, and the turn's message.

        Args:
            last: the turn.
            turns: those of its row; with turn rewards, each of their messages carries its `reward`.
            after: whether what came after the turn is there as well.
        """
        rewards = self._rewards_of(turns)
        end = self._of_turn[last.index]
        spoken = [self._shown(index, rewards) for index in range(len(self.all) if after else end + 1)]
        return spoken if last.context is None else [*_seen(last.context, spoken[:end]), *spoken[end:]]

    def _rewards_of(self, turns: Sequence[Turn]) -> Mapping[int, float | None]:
        """The rewards of turns, by the index of their messages."""
        if self._rewards is None:
            return {}
        return {self._of_turn[turn.index]: self._rewards[turn.index] for turn in turns}

    def _shown(self, index: int, rewards: Mapping[int, float | None]) -> Shown:
        message = self.all[index]
        return {**message, "reward": rewards[index]} if index in rewards else message


def _seen(context: Sequence[Kept | Message], before: Sequence[Shown]) -> list[Shown]:
    """What the model saw, of what came before."""
    seen: list[Shown] = []
    for part in context:
        seen += before[part.start : part.end] if isinstance(part, Kept) else [part.to_openai()]
    return seen
