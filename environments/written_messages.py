"""Messages as an environment's author writes them: our values, or dicts of role and content."""

from collections.abc import Iterable, Mapping
from typing import Any, cast

from environments.trajectory import Message
from tools.errors import ConfigError


def written_messages(given: Any, where: str) -> tuple[Message, ...]:
    """One message or several of them.

    Raises:
        ConfigError: it is something else; `where` says who gave it.
    """
    if not isinstance(given, Iterable) or isinstance(given, Mapping | str | bytes):
        return (_message(given, where),)
    return tuple(_message(each, where) for each in cast("Iterable[Any]", given))


def _message(given: Any, where: str) -> Message:
    if isinstance(given, Message):
        return given
    if isinstance(given, Mapping):
        fields = cast("Mapping[str, Any]", given)
        if set(fields) == {"role", "content"} and isinstance(fields["content"], str):
            return Message(role=fields["role"], content=fields["content"])
    raise ConfigError(
        f"{where} gave {given!r:.200}; give text, or a list of turnwise.Message(role=..., content=...)"
    )
