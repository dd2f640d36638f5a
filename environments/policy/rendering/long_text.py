"""Long text is rendered in a thread, and not at all where no row could hold it."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from environments.policy.rendering.chatml import LONG_CHARS, ChatMLRenderer
from environments.trajectory import Message
from tools.errors import ContextOverflow

Result = TypeVar("Result")


async def rendered(
    work: Callable[[], Result],
    renderer: ChatMLRenderer,
    messages: Sequence[Message],
    *,
    max_tokens: int | None,
) -> Result:
    """The result of `work`, which renders messages.

    Args:
        work: in a thread when the messages that were not rendered before are long.
        renderer: of these messages.
        messages: all that it renders.
        max_tokens: that their row may have; `None`: any number.

    Raises:
        ContextOverflow: they have more tokens for certain.
    """
    chars = renderer.chars_to_encode(messages)
    if chars < LONG_CHARS:
        return work()
    if max_tokens is not None and chars > max_tokens * renderer.longest_token:
        raise ContextOverflow(f"{chars} characters are more than {max_tokens} tokens")
    return await asyncio.to_thread(work)
