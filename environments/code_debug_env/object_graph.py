"""Plain data between the judge and the solution, as JSON that keeps which objects are one and the same.

Only the standard library is there when this runs.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast


class ObjectGraph:
    """Plain data as JSON and back, keeping which mutable objects are one and the same.

    Both sides of a call hold one: objects that came with the request are recognised in the reply and updated
    in place, as if the call had been made in one process.
    """

    def __init__(self, *, own: int) -> None:
        """`own` is 1 or -1: the sign of the numbers that this side gives to objects it has seen first."""
        self._own = own
        self._objects: dict[int, Any] = {}
        self._numbers: dict[int, int] = {}

    def encode(self, value: Any) -> Any:
        """JSON for a value.

        Raises:
            TypeError: it is not plain data.
        """
        return self._encode(value, set())

    def decode(self, node: Any) -> Any:
        """The value of JSON that `encode` made on the other side.

        Raises:
            TypeError: the JSON is not of that form.
        """
        if not isinstance(node, list):
            return node
        kind, *rest = cast(list[Any], node)
        if kind in _ATOMS:
            return _ATOMS[kind](*rest)
        if kind in _IMMUTABLE:
            return _IMMUTABLE[kind]([self.decode(entry) for entry in rest[0]])
        number = rest[0]
        if kind == "ref":
            return self._objects[number]
        found: Any = self._objects.setdefault(number, _MUTABLE[kind]())
        if type(found) is not _MUTABLE[kind]:
            raise TypeError(f"object {number} is no {kind}")
        self._numbers[id(found)] = number
        entries = [self.decode(entry) for entry in rest[1]]
        found.clear()
        found.extend(entries) if kind == "list" else found.update(entries)
        return found

    def _encode(self, value: Any, sent: set[int]) -> Any:
        match value:
            case None | bool() | int() | float() | str():
                return value
            case complex():
                return ["complex", value.real, value.imag]
            case bytes() | bytearray():
                return ["bytes", value.hex()]
            case tuple() | frozenset() | Iterator():
                kind = next(kind for kind, plain in _IMMUTABLE_TYPES.items() if isinstance(value, plain))
                return [kind, self._encode_all(cast(Iterable[Any], value), sent)]
            case list() | set() | dict():
                return self._encode_mutable(cast(list[Any] | set[Any] | dict[Any, Any], value), sent)
            case _:
                raise TypeError(f"{type(value).__name__} is not plain data")

    def _encode_all(self, values: Iterable[Any], sent: set[int]) -> list[Any]:
        return [self._encode(value, sent) for value in values]

    def _encode_mutable(self, value: list[Any] | set[Any] | dict[Any, Any], sent: set[int]) -> Any:
        number = self._numbers.setdefault(id(value), self._own * (len(self._numbers) + 1))
        if number in sent:
            return ["ref", number]
        sent.add(number)
        self._objects[number] = value
        kind = next(kind for kind, plain in _MUTABLE.items() if isinstance(value, plain))
        return [kind, number, self._encode_all(value.items() if isinstance(value, dict) else value, sent)]


_ATOMS: Mapping[str, Callable[..., Any]] = {"complex": complex, "bytes": bytes.fromhex}
_IMMUTABLE: Mapping[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "frozenset": frozenset,
    "iterator": iter,
}
_IMMUTABLE_TYPES: Mapping[str, type] = {"tuple": tuple, "frozenset": frozenset, "iterator": Iterator}
_MUTABLE: Mapping[str, type] = {"list": list, "set": set, "dict": dict}
