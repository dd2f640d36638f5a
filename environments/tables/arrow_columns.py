"""Our values as Arrow: the type of a column, and what it holds of a value, both from the type annotation."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import orjson
import pyarrow

from environments.trajectory import Kept, Message

# Only partly typed.
arrow: Any = pyarrow

Encode = Callable[[Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """What a column is, and how it is filled."""

    type: Any
    """Arrow's."""
    encode: Encode | None = None
    """A value as Arrow takes it; `None`: as it is."""

    def of(self, value: Any) -> Any:
        """A value as Arrow takes it; `None` stays."""
        return value if value is None or self.encode is None else self.encode(value)


_SCALARS: Mapping[Any, Any] = {
    str: arrow.string(),
    int: arrow.int64(),
    float: arrow.float64(),
    bool: arrow.bool_(),
}


def column_of(hint: Any) -> Column:
    """The column of values with this annotation.

    A mapping is a list of `name` and `value`, what may be anything is the text of its JSON, and a part of a
    context has `start` and `end`, or a `message`.

    Raises:
        TypeError: there is none.
    """
    if hint in _SCALARS:
        return Column(type=_SCALARS[hint])
    if hint is Any:
        return Column(type=arrow.string(), encode=json_text)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal or _is_enum(hint):
        return Column(type=arrow.string(), encode=str)
    if origin in (UnionType, Union):
        return _of_union(arguments)
    if origin is tuple:
        return list_of(column_of(arguments[0]))
    if origin is Mapping:
        return _of_mapping(arguments[1])
    if is_dataclass(hint):
        return struct_of(fields_of(cast(type, hint)))
    raise TypeError(f"no column for {hint!r}")


def fields_of(values: type, *, without: tuple[str, ...] = ()) -> dict[str, Column]:
    """The columns of a dataclass's fields, but for some."""
    hints = get_type_hints(values)
    return {each.name: column_of(hints[each.name]) for each in fields(values) if each.name not in without}


def struct_of(columns: Mapping[str, Column]) -> Column:
    """A column of objects that have these attributes."""

    def encode(value: Any) -> dict[str, Any]:
        return {name: column.of(getattr(value, name)) for name, column in columns.items()}

    return Column(type=struct_type(columns), encode=encode)


def struct_type(columns: Mapping[str, Column]) -> Any:
    """Arrow's type of these columns as one."""
    return arrow.struct([(name, column.type) for name, column in columns.items()])


def list_of(each: Column) -> Column:
    """A column of lists."""

    def encode(values: Iterable[Any]) -> list[Any]:
        return [each.of(value) for value in values]

    return Column(type=arrow.list_(each.type), encode=None if each.encode is None else encode)


def json_text(value: Any) -> str:
    """A value as JSON."""
    return orjson.dumps(value).decode()


def entries(value: Any) -> list[dict[str, Any]]:
    """A JSON value as `name` and `value`, which is JSON; what is no mapping is one entry without a name."""
    named: Mapping[Any, Any] = (
        cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {None: value}
    )
    return [{"name": name, "value": json_text(each)} for name, each in named.items()]


ENTRIES = Column(
    type=arrow.list_(arrow.struct([("name", arrow.string()), ("value", arrow.string())])), encode=entries
)


def _is_enum(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, StrEnum)


def _of_union(arguments: tuple[Any, ...]) -> Column:
    kinds = [each for each in arguments if each is not NoneType]
    if set(kinds) == {Kept, Message}:
        return _part_of_context()
    if len(kinds) > 1:
        raise TypeError(f"no column for any of {kinds}")
    return column_of(kinds[0])


def _of_mapping(hint: Any) -> Column:
    value = column_of(hint)

    def encode(mapping: Mapping[str, Any]) -> list[dict[str, Any]]:
        # `None` in an open mapping is JSON's, not a value that is missing.
        of = value.of if hint is not Any else json_text
        return [{"name": name, "value": of(each)} for name, each in mapping.items()]

    return Column(
        type=arrow.list_(arrow.struct([("name", arrow.string()), ("value", value.type)])), encode=encode
    )


def _part_of_context() -> Column:
    kept, message = fields_of(Kept), column_of(Message)

    def encode(part: Kept | Message) -> dict[str, Any]:
        if isinstance(part, Kept):
            return {"start": part.start, "end": part.end}
        return {"message": message.of(part)}

    return Column(type=struct_type({**kept, "message": message}), encode=encode)
