"""What a second model gives to a question, and whoever gives it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from environments.trajectory import Message

LONGEST_ANSWER = 200_000
"""Characters; what follows is cut, as by a server's own limit."""


_THOUGHT, _THOUGHT_ENDS = "<think>", "</think>"
_VERDICT = re.compile(r'\{\s*"')


@dataclass(frozen=True, slots=True, kw_only=True)
class TextAnswer:
    """The answer to one question."""

    text: str | None
    """Without reasoning; `None`: it takes no such question, see `problem`."""
    problem: Literal["too_long", "filtered", "refused", "cut", "empty"] | None = None
    """`too_long`, `filtered`: of the question, and the same one has no other answer. `refused`: the text is
    what the server calls a refusal. `cut`: it is longer than it may be."""
    usage: Mapping[str, int] = field(default_factory=dict[str, int])
    """`prompt_tokens` and `completion_tokens` that were paid for it, where they are known."""


class Answering(Protocol):
    """A model server, or a script in its place."""

    @property
    def model(self) -> str:
        """What the record calls it."""
        ...

    def sampling(self, seed: int) -> Mapping[str, Any]:
        """How it is asked to sample, as the record says it."""
        ...

    async def answer(self, messages: Sequence[Message], *, seed: int) -> TextAnswer:
        """The answer to a conversation that ends with a user message.

        Raises:
            SecondModelError: there is none, after the server's tries.
        """
        ...


def without_reasoning(text: str) -> str:
    """What follows the reasoning that a server left in the text; some begin it in the prompt."""
    start = text.lstrip()
    if start.startswith(("{", "```")):
        return text  # a verdict, which may quote such a mark
    thought, ended, answer = text.partition(_THOUGHT_ENDS)
    if start.startswith(_THOUGHT):
        return answer
    # What follows a verdict may be an agent's text, quoted: it ends no reasoning, and is no verdict.
    return answer if ended and _VERDICT.search(thought) is None else text
