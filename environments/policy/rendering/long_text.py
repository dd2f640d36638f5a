"""Long text is rendered in a thread, and not at all where no row could hold it."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from environments.policy.rendering.chatml import LONG_CHARS
from environments.policy.rendering.renderer import Renderer
from environments.time_profile import timed
from environments.trajectory import Message
from tools.errors import ContextOverflow

Result = TypeVar("Result")
LONGEST_TOKEN = 1_000
"""Characters of a token, where a renderer does not say; those of known vocabularies are shorter."""
_LONG_TOKENS = 4_000
"""Ids whose text takes some 10 ms to read."""


class KnowsItsText(Protocol):
    """A renderer that knows what it has still to encode."""

    def chars_to_encode(self, messages: Sequence[Message]) -> int:
        """Characters of the messages that were not rendered lately."""
        ...


async def rendered(
    work: Callable[[], Result],
    renderer: Renderer | KnowsItsText,
    messages: Sequence[Message],
    *,
    max_tokens: int | None,
    sampled: int = 0,
) -> Result:
    """The result of `work`, which renders messages.

    Args:
        work: in a thread when the messages that were not rendered before are long.
        renderer: of these messages.
        messages: all that it renders.
        max_tokens: that their row may have; `None`: any number.
        sampled: ids of a turn that it reads to go on from there.

    Raises:
        ContextOverflow: they have more tokens for certain.
    """
    # Not `isinstance` of a protocol, which takes 20 µs.
    chars = getattr(renderer, "chars_to_encode", chars_of)(messages)
    if chars >= LONG_CHARS and max_tokens is not None and chars > max_tokens * longest_token(renderer):
        raise ContextOverflow(f"{chars} characters are more than {max_tokens} tokens")
    with timed("rendering a prompt"):
        return await (parsed(work, tokens=sampled) if chars < LONG_CHARS else asyncio.to_thread(work))


async def parsed(work: Callable[[], Result], *, tokens: int) -> Result:
    """The result of `work`, which reads the text of so many ids, in a thread when they are many."""
    return work() if tokens < _LONG_TOKENS else await asyncio.to_thread(work)


def longest_token(renderer: Renderer | KnowsItsText) -> int:
    """Characters of a token of this renderer, at most."""
    return getattr(renderer, "longest_token", LONGEST_TOKEN)


def chars_of(messages: Sequence[Message], *, reasoning: bool = True) -> int:
    """Characters that messages are written with."""
    return sum(
        len(each.content)
        + (len(each.reasoning or "") if reasoning else 0)
        + sum(len(call.arguments) for call in each.tool_calls)
        for each in messages
    )
