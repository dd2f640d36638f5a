"""What an environment says in a conversation: the opening, and the replies to a turn."""

from collections.abc import Mapping
from typing import Any, cast, get_args

from environments.trajectory import Message, Role
from tools.errors import ConfigError


def opening_messages(prompt: Any, *, system: str | None, env: str) -> tuple[Message, ...]:
    """Text becomes one user message after the system prompt; a list of messages stays as it is.

    Raises:
        ConfigError: the prompt is neither.
    """
    where = f"environment {env!r}: format_prompt"
    before = (Message(role="system", content=system),) if system and isinstance(prompt, str) else ()
    messages = (*before, *_messages(prompt, where))
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
    messages = _messages(given, where)
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


def _messages(given: Any, where: str) -> tuple[Message, ...]:
    if isinstance(given, list | tuple):
        return tuple(_message(each, where) for each in cast("list[Any]", given))
    return (
        Message(role="user", content=_text(given, where))
        if isinstance(given, str)
        else _message(given, where),
    )


def _message(given: Any, where: str) -> Message:
    """A message of the user's, its role and its text checked."""
    if isinstance(given, Message):
        _checked(given.role, given.content, where)
        return given
    if isinstance(given, Mapping):
        fields = cast("Mapping[str, Any]", given)
        if set(fields) == {"role", "content"}:
            _checked(fields["role"], fields["content"], where)
            return Message(role=fields["role"], content=fields["content"])
    raise ConfigError(
        f"{where} gave {given!r:.200}; give text, or a list of turnwise.Message(role=..., content=...)"
    )


def _checked(role: Any, content: Any, where: str) -> None:
    if role not in get_args(Role):
        raise ConfigError(f"{where} gave a message of role {role!r:.100}; choose one of {get_args(Role)}")
    if isinstance(content, list | tuple):
        raise ConfigError(
            f"{where} gave a message whose content is a list of parts; give text: images are not taken"
        )
    _text(content, where)


def _text(given: Any, where: str) -> str:
    if not isinstance(given, str):
        raise ConfigError(f"{where} gave a message whose content is {given!r:.100}; give text")
    try:
        given.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{where} gave {given!r:.100}, which is no UTF-8 text") from None
    return given
