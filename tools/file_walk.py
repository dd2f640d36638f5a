"""The program that searches and lists files; `files` runs this source inside the sandbox.

It reads a request as JSON from standard input and prints a report for the model. Exit status 2: the request
cannot be met, the reason is on standard error. Only the standard library, and nothing of this package, is
there when it runs.
"""

import fnmatch
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

SKIPPED = frozenset({".git", "__pycache__", "node_modules", ".venv"})
MAX_ENTRIES = 200
MAX_FILE_BYTES = 2 << 20
MAX_LINE_CHARS = 300


def main() -> None:
    """Answer the one request on standard input."""
    request = json.load(sys.stdin)
    path = Path(request["path"])
    try:
        if not path.exists():
            _refuse(f"{path} does not exist")
        if request["do"] == "search":
            _search(path, request["pattern"], request["glob"])
        else:
            _list(path, request["depth"])
    except OSError as error:
        _refuse(f"{error.filename or path}: {error.strerror}")


def _search(path: Path, pattern: str, glob: str) -> None:
    try:
        expression = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        _refuse(f"the pattern is not a valid Python regular expression: {error}")
    found = searched = 0
    for file in _files(path):
        if not (fnmatch.fnmatch(file.name, glob) or fnmatch.fnmatch(str(file), glob)):
            continue
        searched += 1
        for number, line in enumerate(_lines(file), 1):
            if not expression.search(line):
                continue
            found += 1
            if found > MAX_ENTRIES:
                _say(f"[stopped after {MAX_ENTRIES} matching lines; narrow the pattern, path or glob]")
                return
            _say(f"{file}:{number}: {line[:MAX_LINE_CHARS]}{'…' if len(line) > MAX_LINE_CHARS else ''}")
    _say(f"[{found} matching lines in {searched} files searched]")


def _list(path: Path, depth: int) -> None:
    if not path.is_dir():
        _say(f"{path} ({path.stat().st_size} bytes)")
        return
    count = 0
    for name, kind in _entries(path, depth):
        count += 1
        if count > MAX_ENTRIES:
            _say(f"[stopped after {MAX_ENTRIES} entries; list a subdirectory or use a smaller depth]")
            return
        _say(f"{name}{kind}")
    if count == 0:
        _say(f"[{path} is empty]")


def _entries(path: Path, depth: int) -> Iterator[tuple[str, str]]:
    """Names with what they are: `/` for a directory, a size for a file, `->` for a link."""
    for entry in sorted(path.iterdir()):
        if entry.is_symlink():
            yield str(entry), f" -> {entry.readlink()}"
        elif not entry.is_dir():
            yield str(entry), f" ({entry.stat().st_size} bytes)"
        elif entry.name in SKIPPED or not os.access(entry, os.R_OK | os.X_OK):
            yield str(entry), "/ (contents not listed)"
        else:
            yield str(entry), "/"
            if depth > 1:
                yield from _entries(entry, depth - 1)


def _files(path: Path) -> Iterator[Path]:
    """Regular files at or under a path, sorted; links are not followed."""
    if path.is_file():
        yield path
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if name not in SKIPPED)
        for file in (Path(folder, name) for name in sorted(names)):
            if file.is_file() and not file.is_symlink():
                yield file


def _lines(file: Path) -> list[str]:
    """The lines of a text file; none for one that is binary, unreadable or very large."""
    try:
        data = file.read_bytes() if file.stat().st_size <= MAX_FILE_BYTES else b""
    except OSError:
        return []
    return [] if b"\0" in data else data.decode("utf-8", "replace").splitlines()


def _say(line: str) -> None:
    sys.stdout.buffer.write(line.encode("utf-8", "replace") + b"\n")


def _refuse(reason: str) -> NoReturn:
    sys.stderr.buffer.write(reason.encode("utf-8", "replace"))
    sys.exit(2)


if __name__ == "__main__":
    main()
