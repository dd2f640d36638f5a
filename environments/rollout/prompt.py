"""The conversation before the first turn, from what `format_prompt` gave."""

from collections.abc import Iterable
from typing import Any, cast

from environments.trajectory import Message
from tools.errors import ConfigError


def opening_messages(prompt: Any, *, system: str | None, env: str) -> tuple[Message, ...]:
    """Text becomes one user message after the system prompt; a list of messages stays as it is.

    Raises:
        ConfigError: the prompt is neither.
    """
    if isinstance(prompt, str):
        before = (Message(role="system", content=system),) if system else ()
        return (*before, Message(role="user", content=prompt))
    messages = tuple(cast("Iterable[Any]", prompt)) if isinstance(prompt, Iterable) else (prompt,)
    if not all(isinstance(message, Message) for message in messages):
        raise ConfigError(
            f"environment {env!r}: format_prompt gave {prompt!r:.200}; give text, or a list of "
            f"turnwise.Message(role=..., content=...)"
        )
    return messages
