"""Messages that stand in a line more than once: where that is much, they stand once, and the rest names them.

The column `messages` is what Atropos' readers want it to be: a whole conversation per row. What refers to it,
and to the column `texts`, is what second models were asked, and a conversation that no row has whole.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import orjson

Fields = dict[str, Any]

TEXTS = -1
"""Where a reference `[column, start, end]` to `messages[column]` says this, it is to `texts`."""
MIN_REPEATED_BYTES = 256
"""Less is written again: it is read more easily where it belongs, and a reference is not free."""
MAX_MESSAGES = 100_000
"""Of one list: references could make a short line long without bounds."""
_CALLS = ("judge_calls", "user_calls", "summariser_calls")


def share(line: Fields) -> None:
    """Put `texts` in the place of lists of messages that repeat much of what the line has already."""
    conversations = [each for each in line["trajectories"] if "messages" in each]
    places = _Places(line["messages"] if conversations else ())
    asked = [(call, list(map(orjson.dumps, call["messages"]))) for call in _calls(line)]
    counts = Counter(chain.from_iterable(keys for _, keys in asked))
    for call, keys in asked:
        if sum(len(key) for key in keys if counts[key] > 1) >= MIN_REPEATED_BYTES:
            _refer(call, keys, places)
    for conversation in conversations:
        keys = list(map(orjson.dumps, conversation["messages"]))
        if sum(len(key) for key in keys if key in places.known) >= MIN_REPEATED_BYTES:
            _refer(conversation, keys, places)
    if places.is_used:
        line["texts"] = places.texts


def restore(line: Fields) -> None:
    """Put the messages back in the place of what refers to them.

    Raises:
        ValueError, LookupError, TypeError, AttributeError: a reference is none, or too much is referred to.
    """
    if "texts" not in line:
        return
    for each in chain(_calls(line), line["trajectories"]):
        if "texts" in each:
            each["messages"] = _messages(each.pop("texts"), line)


class _Places:
    """Where messages stand, by their JSON."""

    def __init__(self, columns: Sequence[Sequence[Fields]]) -> None:
        self.texts: list[Fields] = []
        self.is_used = False
        self._keys = {column: list(map(_key, messages)) for column, messages in enumerate(columns)}
        self._keys[TEXTS] = []
        self.known = {
            key: (column, index) for column, keys in self._keys.items() for index, key in enumerate(keys)
        }

    def references(self, messages: Sequence[Fields], keys: Sequence[bytes]) -> list[list[int]]:
        """Stretches that come to these messages; those that stand nowhere yet are added to `texts`."""
        self.is_used = True
        references: list[list[int]] = []
        for message, key in zip(messages, keys, strict=True):
            if key not in self.known:
                self.known[key] = TEXTS, len(self.texts)
                self.texts.append(message)
                self._keys[TEXTS].append(key)
            if references and self._goes_on(references[-1], key):
                references[-1][2] += 1
            else:
                column, index = self.known[key]
                references.append([column, index, index + 1])
        return references

    def _goes_on(self, reference: Sequence[int], key: bytes) -> bool:
        column, _, end = reference
        keys = self._keys[column]
        return end < len(keys) and keys[end] == key


def _key(message: Fields) -> bytes:
    """A message of a row may have its reward, which is no part of it."""
    return orjson.dumps({name: value for name, value in message.items() if name != "reward"})


def _refer(owner: Fields, keys: Sequence[bytes], places: _Places) -> None:
    owner["texts"] = places.references(owner["messages"], keys)
    # Versions that know no references refuse such a line, and take it for no other conversation.
    owner["messages"] = None


def _calls(line: Fields) -> Iterator[Fields]:
    """Every question to a second model."""
    for owner in chain((line,), line["trajectories"], line["failures"]):
        for name in _CALLS:
            yield from owner.get(name) or ()


def _messages(references: Sequence[Sequence[int]], line: Fields) -> list[Fields]:
    messages: list[Fields] = []
    for column, start, end in references:
        stand = line["texts"] if column == TEXTS else line["messages"][column]
        if column < TEXTS or not 0 <= start < end <= len(stand):
            raise ValueError(f"texts: no messages {start} to {end} of column {column}")
        messages += stand[start:end]
        if len(messages) > MAX_MESSAGES:
            raise ValueError(f"texts: more than {MAX_MESSAGES} messages")
    return messages
