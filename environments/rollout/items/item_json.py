"""Items as JSON values: their form in a record, their ids and hashes."""

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any, cast
from uuid import UUID

import orjson
from pydantic import BaseModel

from tools.errors import DatasetError
from tools.plain_text import is_utf8

_AS_TEXT = (date, time, timedelta, Decimal, UUID, PurePath, bytes)


def json_text(item: Any) -> str:
    """Return the item as JSON with sorted keys; raises DatasetError for values without a JSON form."""
    return _dump(item, _refuse)


def stable_text(value: Any) -> str:
    """Return any value as JSON, the same in every process; values without a JSON form as their type."""
    try:
        return _dump(value, lambda _, unknown: f"<{type(unknown).__qualname__}>")
    except DatasetError:
        return "<endless>"


def item_hash(item: Any) -> str:
    """Return a hash that is equal for items of equal content; values without a JSON form count by type."""
    text = stable_text(item)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def item_for_record(item: Any) -> Any:
    """Return the item as values that a record restores exactly, or None if that is impossible."""
    try:
        value = json.loads(json_text(item))
        return value if orjson.loads(orjson.dumps(value)) == value else None
    except (DatasetError, orjson.JSONEncodeError):
        return None  # no form in JSON, a lone surrogate, or more than 64 bits; NaN equals nothing


def _dump(item: Any, unknown: Callable[[str, Any], Any]) -> str:
    try:
        return json.dumps(_value(item, "", unknown), sort_keys=True, ensure_ascii=False)
    except RecursionError:
        raise DatasetError("holds itself, or is nested too deeply") from None


def _value(value: Any, path: str, unknown: Callable[[str, Any], Any]) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, Mapping):
        entries = cast("Mapping[Any, Any]", value).items()
        return {_key(key, path, unknown): _value(each, f"{path}.{key}", unknown) for key, each in entries}
    if isinstance(value, list | tuple):
        each = cast("list[Any]", value)
        return [_value(entry, f"{path}[{index}]", unknown) for index, entry in enumerate(each)]
    if isinstance(value, Set):
        entries = [_value(entry, f"{path}{{}}", unknown) for entry in cast("Set[Any]", value)]
        return sorted(entries, key=lambda entry: json.dumps(entry, sort_keys=True))
    if isinstance(value, Enum):
        return _value(value.value, path, unknown)
    if isinstance(value, _AS_TEXT):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        named = {field.name: getattr(value, field.name) for field in fields(value)}
        return _value(named, path, unknown)
    if isinstance(value, BaseModel):
        return _value(dict(value), path, unknown)
    # Numbers and arrays of numpy, as parquet readers give them; numpy itself loads slowly.
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return _value(cast("Any", value).tolist(), path, unknown)
    return unknown(path, value)


def _key(key: Any, path: str, unknown: Callable[[str, Any], Any]) -> str:
    if isinstance(key, str):
        return key
    if key is None or isinstance(key, bool | int) or (isinstance(key, float) and math.isfinite(key)):
        return json.dumps(key)
    return str(unknown(f"{path}, a key", key))


def _refuse(path: str, value: Any) -> Any:
    where = f" at {path.removeprefix('.')}" if path else ""
    raise DatasetError(
        f"holds an object of type {type(value).__qualname__}{where}, which JSON has no form for; give it an "
        f"item_id, or make it of text, numbers, lists, mappings or dataclasses"
    )


ID_FIELDS = ("item_id", "task_id", "id")


def item_id(item: Any) -> str:
    """Return an item's first id field, or else a hash of its content: it is the same in every run.

    Raises:
        DatasetError: if neither is possible; the text does not name the item.
    """
    if isinstance(item, Mapping):
        named = cast(Mapping[str, Any], item)
        for field in ID_FIELDS:
            if named.get(field) is not None:
                value = named[field]
                if isinstance(value, str):
                    return check_id(value)
                try:
                    is_scalar = not isinstance(value, Mapping | list | tuple)
                    json_text(value)
                except DatasetError:
                    is_scalar = False
                if not is_scalar:
                    raise DatasetError(
                        f"has an object of type {type(value).__qualname__} as its {field}; an id is text "
                        f"or a number"
                    )
                return check_id(str(value))
    return hashlib.sha256(json_text(item).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def item_ids(items: Sequence[Any]) -> list[str]:
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


def check_id(identity: Any) -> str:
    if not isinstance(identity, str):
        raise DatasetError(f"has the id {identity!r:.100}; an item id is text")
    if not is_utf8(identity):
        raise DatasetError(
            f"has the id {identity!r:.100}, which is not UTF-8 text (a lone surrogate, half of a character)"
        )
    return identity
