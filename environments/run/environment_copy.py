"""`environment/` of a run: the environment's files as they were, and how they differ from those of today."""

import difflib
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from environments.record.private_file import write_private
from environments.run.experiment_code import same_code
from tools.errors import RecordError

MOST_BYTES = 16 * 1024 * 1024
"""Of a copy; what is longer than what is left of it is left out."""
MOST_FILES = 2_000
SHOWN_LINES = 40
_LONGEST_DIFF_BYTES = 256 * 1024
"""A diff of longer files takes long, and nobody reads it."""


def copy_environment(files: Mapping[str, Path], to: Path) -> dict[str, str]:
    """Make a folder with copies of files, in the place of what is there.

    Returns:
        The files that were left out, each with the reason.

    Raises:
        RecordError: it cannot be written.
    """
    unfinished = to.with_name(f".{to.name}.part")
    left_out: dict[str, str] = {}
    left = MOST_BYTES
    remove(unfinished)
    try:
        # What is small first: code, before data.
        for index, name in enumerate(sorted(files, key=lambda name: (_size(files[name]), name))):
            try:
                data = files[name].read_bytes() if _size(files[name]) <= left else None
            except OSError as error:
                left_out[name] = f"cannot be read: {error.strerror}"
                continue
            if data is None or index >= MOST_FILES:
                left_out[name] = f"{_size(files[name]):,} bytes"
                continue
            left -= len(data)
            target = unfinished / name
            target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_private(target, data)
        remove(to)
        if unfinished.exists():
            unfinished.rename(to)
    except OSError as error:
        raise RecordError(f"cannot write {to}: {error.strerror}") from error
    finally:
        remove(unfinished)
    return left_out


def source_diff(before: Path, files: Mapping[str, Path]) -> Iterator[str]:
    """Lines of a unified diff of the files that differ in what counts; nothing where there is no copy."""
    if not before.is_dir():
        return
    was = {path.relative_to(before).as_posix(): path for path in sorted(before.rglob("*")) if path.is_file()}
    for name in sorted({*was, *files}):
        old, new = was.get(name), files.get(name)
        if old is None:
            yield f"environment/{name} is not in the copy of the earlier run"
        elif new is None:
            yield f"environment/{name} is no part of the environment any more"
        elif not same_code(old, new):
            yield from _diff(name, old, new)


def shown(lines: Iterator[str]) -> Iterator[str]:
    """The first lines, as a terminal takes them; the others are counted."""
    for _ in range(SHOWN_LINES):
        line = next(lines, None)
        if line is None:
            return
        yield "".join(char if char.isprintable() or char == "\t" else "?" for char in line)
    if more := sum(1 for _ in lines):
        yield f"… and {more} more lines"


def remove(path: Path) -> None:
    """Delete a folder or a file, where there is one; a link alone, and not what it leads to."""
    if path.is_symlink() or path.is_file():
        with suppress(OSError):
            path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def _diff(name: str, old: Path, new: Path) -> Iterator[str]:
    texts: list[list[str]] = []
    for path in (old, new):
        try:
            data = path.read_bytes() if _size(path) <= _LONGEST_DIFF_BYTES else None
            text = None if data is None else data.decode("utf-8")
        except (OSError, UnicodeDecodeError):
            text = None
        if text is None:
            yield f"environment/{name} changed"
            return
        texts.append(text.splitlines())
    was, is_ = texts
    yield from difflib.unified_diff(was, is_, f"environment/{name}", os.path.relpath(new), lineterm="", n=1)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
