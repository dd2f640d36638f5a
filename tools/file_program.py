"""The program of the file tools; `files` runs its source in the sandbox with only the standard library.

Large texts thus cost only the sandbox's time and memory. The request is JSON on stdin, the report for the
model goes to stdout. Exit status 2: refused for the reason on stderr.
"""

import errno
import fnmatch
import json
import os
import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

SKIPPED = frozenset({".git", "__pycache__", "node_modules", ".venv"})
MAX_ENTRIES = 200
MAX_FILE_BYTES = 10 << 20
MAX_SHOWN_BYTES = 200_000
MAX_SEARCHED_BYTES = 2 << 20
MAX_LINE_CHARS = 300
MAX_LINES_NAMED = 10


def main() -> None:
    request = json.load(sys.stdin)
    path = request["path"]
    try:
        _DO[request.pop("do")](**request)
    except OSError as error:
        _refuse(_reason(path, error))


def _read(path: str, first: int, last: int | None) -> None:
    text = _text(path)
    if not text:
        _say(f"[{path} is empty]")
        return
    lines = text.removesuffix("\n").split("\n")
    if first > len(lines):
        _refuse(f"{path} has {len(lines)} lines, so there is no line {first}")
    shown, room = first - 1, MAX_SHOWN_BYTES
    for line in lines[first - 1 : last]:
        encoded = f"{shown + 1}\t{line}".encode()
        if len(encoded) > room and shown >= first:
            break
        sys.stdout.buffer.write(encoded[:room] + b"\n")
        shown, room = shown + 1, room - len(encoded)
    if room < 0:
        _say(f"[line {shown} has {len(lines[shown - 1])} characters; only its beginning is shown]")
    if shown - first + 1 < len(lines):
        _say(f"[lines {first} to {shown} of {len(lines)}]")


def _write(path: str, content: str) -> None:
    data = content.encode()
    _replace(path, data)
    _say(f"Wrote {path} ({len(data)} bytes, {len(content.splitlines())} lines).")


def _edit(path: str, old: str, new: str, everywhere: bool) -> None:
    text = _text(path)
    count = text.count(old)
    if count == 0:
        _refuse(f"`old` was found 0 times in {path}. {_why_no_match(text, old)}")
    named = _lines_of(text, old, count)
    if count > 1 and not everywhere:
        _refuse(
            f"`old` was found {count} times in {path}, at lines {named}. Include more of the lines around it "
            f"so that it is unique, or set replace_all to true."
        )
    if len(text) + count * (len(new) - len(old)) > MAX_FILE_BYTES:
        _refuse(f"{path} would be larger than {MAX_FILE_BYTES >> 20} MB; nothing was changed")
    _replace(path, text.replace(old, new).encode())
    places = "1 place" if count == 1 else f"{count} places"
    _say(f"Replaced {places} in {path}, at line{'s' * (count > 1)} {named}.")


def _lines_of(text: str, old: str, count: int) -> str:
    numbers, number, seen, start = list[str](), 1, 0, 0
    for _ in range(min(count, MAX_LINES_NAMED)):
        start = text.index(old, start)
        number, seen = number + text.count("\n", seen, start), start
        numbers.append(str(number))
        start += len(old)
    return ", ".join(numbers) + (f" and {count - MAX_LINES_NAMED} more" if count > MAX_LINES_NAMED else "")


def _why_no_match(text: str, old: str) -> str:
    if "".join(old.split()) in "".join(text.split()):
        return "It is there with other spaces or line breaks: copy the indentation exactly from read_file."
    first = old.strip().split("\n")[0].strip()
    if first and (count := text.count(first)):
        named = _lines_of(text, first, count)
        return f"Its first line is at line {named}, but what follows differs: read the file again."
    return "Read the file again and copy the text exactly, without line numbers."


def _search(path: str, pattern: str, glob: str) -> None:
    top = _existing(path)
    try:
        expression = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        _refuse(f"the pattern is not a valid Python regular expression: {error}")
    found = searched = 0
    for file in _files(top):
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


def _list(path: str, depth: int) -> None:
    top = _existing(path)
    if not top.is_dir():
        _say(f"{path} ({top.stat().st_size} bytes)")
        return
    count = 0
    for name, kind in _entries(top, depth):
        count += 1
        if count > MAX_ENTRIES:
            _say(f"[stopped after {MAX_ENTRIES} entries; list a subdirectory or use a smaller depth]")
            return
        _say(f"{name}{kind}")
    if count == 0:
        _say(f"[{path} is empty]")


def _entries(path: Path, depth: int) -> Iterator[tuple[str, str]]:
    for entry in (path / name for name in sorted(os.listdir(path))):
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
    """Yield regular files under a path, sorted, without following links."""
    if path.is_file():
        yield path
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if name not in SKIPPED)
        for file in (Path(folder, name) for name in sorted(names)):
            if file.is_file() and not file.is_symlink():
                yield file


def _lines(file: Path) -> list[str]:
    try:
        data = file.read_bytes() if file.stat().st_size <= MAX_SEARCHED_BYTES else b""
    except OSError:
        return []
    return [] if b"\0" in data or not data else data.decode("utf-8", "replace").removesuffix("\n").split("\n")


def _existing(path: str) -> Path:
    Path(path).stat()
    return Path(path)


def _text(path: str) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with open(fd, "rb") as file:
        _check_regular(path, os.fstat(fd))
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        _refuse(f"{path} is larger than {MAX_FILE_BYTES >> 20} MB; look at it with a terminal command")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        _refuse(f"{path} is not UTF-8 text ({len(data)} bytes); look at it with a terminal command")
    return text


def _replace(path: str, data: bytes) -> None:
    """Write a file atomically; an existing file keeps its permissions."""
    target = os.path.realpath(path)
    folder, mode = os.path.dirname(target), 0o644
    os.makedirs(folder, exist_ok=True)
    try:
        status = os.stat(target)
    except FileNotFoundError:
        pass
    else:
        _check_regular(path, status)
        mode = stat.S_IMODE(status.st_mode)
        # A rename needs no permission of the replaced file, so check it here.
        if not os.access(target, os.W_OK):
            raise PermissionError
    temporary = os.path.join(folder, f".write-{os.getpid()}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with open(fd, "wb") as file:
            file.write(data)
            os.fchmod(fd, mode)
        os.rename(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def _check_regular(path: str, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError
    if not stat.S_ISREG(status.st_mode):
        _refuse(f"{path} is not a regular file")


def _reason(path: str, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{path} does not exist; list_files shows what does"
    if isinstance(error, IsADirectoryError):
        return f"{path} is a directory, not a file"
    if isinstance(error, (NotADirectoryError, FileExistsError)):
        return f"part of {path} is a file, not a directory"
    if isinstance(error, PermissionError):
        return f"no permission for {path}"
    if error.errno == errno.ENOSPC:
        return f"no space is left in the workspace for {path}"
    return f"{path}: {error.strerror or error}"


def _say(line: str) -> None:
    sys.stdout.buffer.write(line.encode("utf-8", "replace") + b"\n")


def _refuse(reason: str) -> NoReturn:
    sys.stderr.buffer.write(reason.encode("utf-8", "replace"))
    sys.exit(2)


_DO: dict[str, Any] = {"read": _read, "write": _write, "edit": _edit, "search": _search, "list": _list}

if __name__ == "__main__":
    main()
