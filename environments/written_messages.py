"""Messages as an environment's author writes them: text, our values, or dicts of role and content."""

from collections.abc import Mapping
from typing import Any, cast, get_args

from environments.plain_text import is_utf8
from environments.trajectory import Message, Role
from tools.errors import ConfigError


def written_messages(given: Any, where: str) -> tuple[Message, ...]:
    """A text of a user, one message, or a list of messages.

    Raises:
        ConfigError: it is something else; `where` says who gave it.
    """
    if isinstance(given, str):
        return (Message(role="user", content=_text(given, where)),)
    if not isinstance(given, list | tuple):
        return (_message(given, where, ""),)
    several = cast("list[Any]", given)
    return tuple(_message(each, where, f", in {given!r:.200}") for each in several)


def _message(given: Any, where: str, within: str) -> Message:
    fields: Mapping[Any, Any] = {}
    if isinstance(given, Message):
        fields = {"role": given.role, "content": given.content}
    elif isinstance(given, Mapping):
        fields = cast("Mapping[Any, Any]", given)
    if set(fields) != {"role", "content"}:
        raise ConfigError(
            f"{where} gave {given!r:.200}{within}; give text, or a list of "
            f"turnwise.Message(role=..., content=...)"
        )
    role, content = fields["role"], fields["content"]
    if role not in get_args(Role):
        raise ConfigError(f"{where} gave a message of role {role!r:.100}; choose one of {get_args(Role)}")
    if isinstance(content, list | tuple):
        raise ConfigError(
            f"{where} gave a message whose content is a list of parts; give text: images are not taken"
        )
    text = _text(content, where)
    return given if isinstance(given, Message) else Message(role=role, content=text)


def _text(given: Any, where: str) -> str:
    if not isinstance(given, str):
        raise ConfigError(f"{where} gave a message whose content is {given!r:.100}; give text")
    if not is_utf8(given):
        raise ConfigError(f"{where} gave {given!r:.100}, which is no UTF-8 text")
    return given
