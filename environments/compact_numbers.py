"""Numbers of one kind in the memory that they need: 4 bytes for a token's id, 8 for its log-probability."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeVar, cast, overload

Number = TypeVar("Number", int, float)


class CompactNumbers(Sequence[Number], Generic[Number]):
    """Reads, compares and hashes as the tuple of its numbers; nobody changes it."""

    __slots__ = ("_values",)

    def __init__(self, values: "array[Number]") -> None:
        """A view of an array; it grows where its owner lets the array grow."""
        self._values = values

    @overload
    def __getitem__(self, index: int) -> Number: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Number, ...]: ...
    def __getitem__(self, index: int | slice) -> Number | tuple[Number, ...]:
        return tuple(self._values[index]) if isinstance(index, slice) else self._values[index]

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[Number]:
        return iter(self._values)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, CompactNumbers):
            return self._values == cast("CompactNumbers[Number]", other)._values
        return tuple(self) == other if isinstance(other, tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


def compact_ids(ids: Iterable[int]) -> CompactNumbers[int]:
    """The ids, copied. Raises ValueError for a number beyond 32 bits, TypeError for what is no integer."""
    try:
        return CompactNumbers(array("i", ids))
    except OverflowError:
        raise ValueError("a token id is a number of 32 bits") from None


def compact_floats(numbers: Iterable[float]) -> CompactNumbers[float]:
    """The numbers as doubles, copied. Raises TypeError for what is none."""
    return CompactNumbers(array("d", numbers))
