"""What an item is called across runs, wherever it stands."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, cast

from environments.data.item_json import json_text
from environments.plain_text import is_utf8
from tools.errors import DatasetError

ID_FIELDS = ("item_id", "task_id", "id")


def item_id(item: Any) -> str:
    """The name an item keeps across runs, whatever its position: its first id field, else its content.

    Raises:
        DatasetError: it has no such name; says why, but not which item it is.
    """
    if isinstance(item, Mapping):
        named = cast(Mapping[str, Any], item)
        for field in ID_FIELDS:
            if named.get(field) is not None:
                return _name(named[field], field)
    return hashlib.sha256(json_text(item).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def item_ids(items: Sequence[Any]) -> list[str]:
    """`item_id` of every item.

    Raises:
        DatasetError: one has none that a record can hold, or two have the same.
    """
    first: dict[str, int] = {}
    for index, item in enumerate(items):
        try:
            identity = item_id(item)
        except DatasetError as error:
            raise DatasetError(f"item {index + 1} {error}") from None
        if identity in first:
            raise DatasetError(
                f"items {first[identity] + 1} and {index + 1} have the same id {identity!r}; an id is the "
                f"first of {list(ID_FIELDS)} that an item has, or else its content, and must differ"
            )
        first[identity] = index
    return list(first)


def checked_id(identity: Any) -> str:
    """An item id as a record and a trainer can hold it.

    Raises:
        DatasetError: it is no text, or no UTF-8.
    """
    if not isinstance(identity, str):
        raise DatasetError(f"has the id {identity!r:.100}; an item id is text")
    if not is_utf8(identity):
        raise DatasetError(
            f"has the id {identity!r:.100}, which is no UTF-8 text (a lone surrogate, half of a character)"
        )
    return identity


def _name(value: Any, field: str) -> str:
    if isinstance(value, str):
        return checked_id(value)
    try:
        json_text(value)
    except DatasetError:
        raise DatasetError(
            f"has an object of type {type(value).__qualname__} as its {field}; an id is text or a number"
        ) from None
    return checked_id(str(value))
