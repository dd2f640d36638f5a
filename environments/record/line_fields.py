"""The fields of a line, each parsed only when it is asked for: most of a line is columns of numbers."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import msgspec
import orjson

from tools.errors import RecordError

_SPLIT = msgspec.json.Decoder(dict[str, msgspec.Raw])


class LineFields(Mapping[str, bytes]):
    """The JSON text of each field of a line, which is checked to be JSON."""

    def __init__(self, line: bytes, path: Path, number: int) -> None:
        """Find the fields.

        Raises:
            RecordError: not JSON; it names the file and the line.
            TypeError: no object.
        """
        self.where = f"{path}, line {number}"
        """For errors."""
        try:
            self._raw = _split(line)
        except (msgspec.DecodeError, UnicodeDecodeError, orjson.JSONDecodeError, RecursionError) as error:
            raise RecordError(f"{self.where}: not JSON ({error})") from error

    def __getitem__(self, name: str) -> bytes:
        """Its JSON text."""
        return bytes(self._raw[name])

    def __iter__(self) -> Iterator[str]:
        """The names, in their order."""
        return iter(self._raw)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._raw)

    def parsed(
        self, names: Iterable[str], *, instead: Mapping[str, Any] = MappingProxyType({})
    ) -> dict[str, Any]:
        """The values of those of these fields that are there; `instead` has those that are not to be parsed.

        Raises:
            RecordError: a text in them is no UTF-8.
        """
        raw = self._raw
        try:
            return {
                name: instead[name] if name in instead else orjson.loads(memoryview(raw[name]))
                for name in names
                if name in raw
            }
        except orjson.JSONDecodeError as error:
            raise RecordError(f"{self.where}: not JSON ({error})") from error

    def value(self, name: str) -> Any:
        """One value; `None` where there is no such field."""
        return cast("Any", self.parsed((name,)).get(name))


def _split(line: bytes) -> dict[str, msgspec.Raw]:
    try:
        return _SPLIT.decode(line)
    except msgspec.ValidationError as error:
        orjson.loads(line)
        raise TypeError(str(error)) from error
