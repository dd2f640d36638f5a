"""What an environment says in a conversation: the opening, and the replies to a turn."""

from typing import Any

from environments.trajectory import Message
from environments.written_messages import written_messages
from tools.errors import ConfigError

_REPLYING = ("user", "system")


def opening_messages(prompt: Any, *, system: str | None, env: str) -> tuple[Message, ...]:
    """Text becomes one user message after the system prompt; a list of messages stays as it is.

    Raises:
        ConfigError: the prompt is neither.
    """
    if isinstance(prompt, str):
        before = (Message(role="system", content=system),) if system else ()
        return (*before, Message(role="user", content=prompt))
    return written_messages(prompt, f"environment {env!r}: format_prompt")


def reply_messages(given: Any, *, env: str) -> tuple[Message, ...]:
    """What `respond` gave, as messages; none for `None`.

    Raises:
        ConfigError: it is no text and no message, an empty list, or of a role that nobody replies in.
    """
    where = f"environment {env!r}: respond"
    if given is None:
        return ()
    if isinstance(given, str):
        return (Message(role="user", content=given),)
    messages = written_messages(given, where)
    if not messages:
        raise ConfigError(f"{where} gave no messages; give None where there is no reply")
    if wrong := next((message for message in messages if message.role not in _REPLYING), None):
        raise ConfigError(
            f"{where} gave a message of role {wrong.role!r}; a reply is of role {' or '.join(_REPLYING)}"
        )
    return messages
