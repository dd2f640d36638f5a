"""What a condenser gave, checked before a model sees it: a history that is none costs its rollout alone."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

from environments.rollout.completion_check import text_problem, texts_problem
from environments.rollout.context import Entry, History
from environments.trajectory import Message
from tools.errors import ConfigError

_ROLES = ("system", "user", "assistant", "tool")


def checked_history(given: Any, conversation: Sequence[Entry], where: str) -> History:
    """A history that a model can be asked to go on from.

    Args:
        given: by a condenser.
        conversation: all that was said, entry by entry.
        where: which condenser, for people.

    Raises:
        ConfigError: it is empty or no history, says what nobody said, is out of order, separates a call from
            its result, or leaves the model nothing to answer.
    """
    entries = checked_entries(given, conversation, where)
    if not entries:
        raise ConfigError(f"{where} gave {given!r:.100}; give the entries that the model is to see")
    indices = [entry.index for entry in entries if entry.index is not None]
    if any(after <= before for before, after in pairwise(indices)):
        raise ConfigError(f"{where} gave messages out of order, or twice: {indices!s:.200}")
    turns = [entry.turn for entry in entries if entry.turn is not None]
    if turns != sorted(turns):
        raise ConfigError(f"{where} gave turns out of order: {turns!s:.200}")
    _refuse_orphans(entries, where)
    if entries[-1].message.role == "assistant" != conversation[-1].message.role:
        raise ConfigError(
            f"{where} gave a history that ends with the agent's own message; nothing asks it on"
        )
    return entries


def checked_entries(given: Any, conversation: Sequence[Entry], where: str) -> History:
    """Entries that may be counted; those of the conversation as it has them.

    Raises:
        ConfigError: one of them is none, or says what nobody said.
    """
    if not isinstance(given, list | tuple):
        raise ConfigError(f"{where} gave {given!r:.100}; give the entries that the model is to see")
    return tuple([_checked(entry, conversation, where) for entry in cast("Sequence[Any]", given)])


def _checked(entry: Any, conversation: Sequence[Entry], where: str) -> Entry:
    if type(entry) is not Entry or type(cast("Any", entry.message)) is not Message:
        raise ConfigError(f"{where} gave an entry {entry!r:.100}; an entry is a turnwise.Entry")
    index: Any = entry.index
    if index is None:
        return _written(entry, conversation, where)
    if type(index) is not int or not 0 <= index < len(conversation):
        raise ConfigError(
            f"{where} gave an entry with the index {index!r:.100}; the conversation has {len(conversation)} "
            f"messages, and what a condenser writes has index=None"
        )
    said = conversation[index]
    if entry is not said and entry.message != said.message:
        raise ConfigError(
            f"{where} changed message {index} and kept its index; what it writes has index=None"
        )
    return said


def _written(entry: Entry, conversation: Sequence[Entry], where: str) -> Entry:
    """An entry that a condenser wrote."""
    message = entry.message
    if (problem := _problem(message)) is not None:
        raise ConfigError(f"{where} wrote a message that no model can see: {problem}")
    turn: Any = entry.turn
    last = next((said.turn for said in reversed(conversation) if said.turn is not None), -1)
    if turn is not None and (type(turn) is not int or not 0 <= turn <= last):
        raise ConfigError(f"{where} wrote an entry of turn {turn!r:.100}; there are {last + 1} turns")
    return entry if type(entry.is_summary) is bool else replace(entry, is_summary=bool(entry.is_summary))


def _problem(message: Message) -> str | None:
    """What is wrong with a message of user code, whatever its fields hold."""
    if message.role not in _ROLES:
        return f"its role is {message.role!r:.100}; choose one of {', '.join(_ROLES)}"
    if message.tool_calls and message.role != "assistant":
        return f"a message of role {message.role} calls tools"
    if message.role == "tool":
        return text_problem("tool_call_id", message.tool_call_id) or texts_problem(message)
    return texts_problem(message)


def _refuse_orphans(history: History, where: str) -> None:
    """Raise ConfigError where a call has no result, or a result no call, of its own turn."""
    waiting: list[str] = []
    caller: int | None = None
    for entry in (*history, None):
        message = None if entry is None else entry.message
        if entry is not None and message is not None and message.role == "tool":
            if message.tool_call_id not in waiting or entry.turn != caller:
                raise ConfigError(
                    f"{where} kept the result of a call {message.tool_call_id!r:.100} without the call, or "
                    f"as another turn's; entry.with_content(text) stays where it belongs"
                )
            waiting.remove(message.tool_call_id)
            continue
        if waiting:
            raise ConfigError(f"{where} kept a call {waiting[0]!r:.100} without its result")
        waiting = [] if message is None else [call.id for call in message.tool_calls]
        caller = None if entry is None else entry.turn
