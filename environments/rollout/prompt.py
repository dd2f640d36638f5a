"""What an environment says in a conversation: the opening, and the replies to a turn."""

from typing import Any

from environments.trajectory import Message
from environments.written_messages import written_messages
from tools.errors import ConfigError


def opening_messages(prompt: Any, *, system: str | None, env: str) -> tuple[Message, ...]:
    """Text becomes one user message after the system prompt; a list of messages stays as it is.

    Raises:
        ConfigError: the prompt is neither.
    """
    where = f"environment {env!r}: format_prompt"
    before = (Message(role="system", content=system),) if system and isinstance(prompt, str) else ()
    messages = (*before, *written_messages(prompt, where))
    if not messages:
        raise ConfigError(f"{where} gave no messages; give text, or at least one message")
    return messages


def reply_messages(given: Any, *, env: str) -> tuple[Message, ...]:
    """What `respond` gave, as messages; none for `None`.

    Raises:
        ConfigError: it is no text and no message, an empty list, or says what nobody replies.
    """
    where = f"environment {env!r}: respond"
    if given is None:
        return ()
    messages = written_messages(given, where)
    if not messages:
        raise ConfigError(f"{where} gave no messages; give None where there is no reply")
    for message in messages:
        if message.role not in ("user", "system"):
            raise ConfigError(
                f"{where} gave a message of role {message.role!r}; a reply is of role user or system"
            )
        if message != Message(role=message.role, content=message.content):
            raise ConfigError(f"{where} gave {message!r:.200}; a reply has a role and content alone")
    return messages
