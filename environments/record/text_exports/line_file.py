"""The file of a text export, written so that `load_dataset("json", data_files=…)` returns its values.

`datasets` guesses the type of each column from the first 10 MB, and each stretch of 10 MB anew. Left alone it
gives a message the keys of all others, takes the text `2026-11-22` for a date, and gives up where a number
stands in a column that began with nulls. So the messages of the first line carry one key more than others,
which makes it keep every message as it is written; lines in which a column has its first number come early;
and a name that reads as a date stands in quotes.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Self

import orjson

from environments.record.private_file import private

_MARK = b'"first_line":true,'
_MESSAGES = ("prompt", "completion", "chosen", "rejected")
_DATE = re.compile(r"\d{4}-\d\d-\d\d([ T][\d:.,Z+-]*)?")
_STRETCH = 10 << 20
"""What `datasets` reads at a time, on to the end of a line."""


class LineFile:
    """A new file of lines that have the same columns."""

    def __init__(self, path: Path) -> None:
        """Begin an empty file, which its owner alone may read.

        Raises:
            OSError: it cannot be written, here and later.
        """
        self.lines = 0
        self._path = path
        self._file: BinaryIO = open(path, "wb", opener=private)  # noqa: SIM115  # `Path.open` takes no opener
        self._size = 0
        self._known: set[str] = set()
        """Columns that were something else than null."""
        self._late: list[tuple[int, int]] = []
        """Start and end of the lines that have to come early."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, line: Mapping[str, Any]) -> None:
        """One line; the messages of prompts and completions are JSON already."""
        text = _text(line, mark=b"" if self.lines else _MARK)
        start, self._size = self._size, self._size + len(text)
        columns = {name for name, value in line.items() if value is not None}
        if not self._known.issuperset(columns):
            self._known.update(columns)
            if start >= _STRETCH:
                self._late.append((start, self._size))
        self._file.write(text)
        self.lines += 1

    def put_early(self) -> None:
        """Have the lines stand where `datasets` needs them; nothing is written after it."""
        self._file.close()
        if not self._late:
            return
        sorted_path = self._path.with_name(self._path.name + ".sorted")
        try:
            with self._path.open("rb") as lines, open(sorted_path, "wb", opener=private) as file:
                for start, end in self._in_order(len(lines.readline())):
                    _copy(lines, start, end, file)
            sorted_path.replace(self._path)
        finally:
            sorted_path.unlink(missing_ok=True)

    def _in_order(self, first: int) -> Sequence[tuple[int, int]]:
        """Stretches of the file: its first line, those that come early, and what is between them."""
        rest: list[tuple[int, int]] = []
        start = first
        for late in self._late:
            rest.append((start, late[0]))
            start = late[1]
        return [(0, first), *self._late, *rest, (start, self._size)]


def _text(line: Mapping[str, Any], *, mark: bytes) -> bytes:
    shown = {name: _shown(name, value, mark) for name, value in line.items()}
    return orjson.dumps(shown, option=orjson.OPT_APPEND_NEWLINE)


def _shown(name: str, value: Any, mark: bytes) -> Any:
    if name in _MESSAGES:
        first, *rest = value
        return [orjson.Fragment(message) for message in (b"{" + mark + first[1:], *rest)]
    if isinstance(value, str) and _DATE.fullmatch(value):
        return f'"{value}"'
    return value


def _copy(source: BinaryIO, start: int, end: int, target: BinaryIO) -> None:
    source.seek(start)
    while piece := source.read(min(end - start, _STRETCH)):
        target.write(piece)
        start += len(piece)
