"""Telling for sure whether the process that owns something still lives."""

from pathlib import Path


def identity(pid: int) -> str:
    """A name for one process that no later process has: PID namespace, id and start time."""
    namespace = Path("/proc/self/ns/pid").stat().st_ino
    return f"{namespace}-{pid}-{_start_time(pid)}"


def has_ended(name: str) -> bool:
    """Whether the process of an `identity` is gone; `False` when this process cannot know."""
    parts = name.split("-")
    if len(parts) != 3 or not all(part.isdigit() for part in parts):
        return False
    namespace, pid, start = parts
    if int(namespace) != Path("/proc/self/ns/pid").stat().st_ino:
        return False
    try:
        return _start_time(int(pid)) != int(start)
    except (FileNotFoundError, ProcessLookupError):
        return True
    except PermissionError:
        return False


def owner_pid(name: str) -> int | None:
    """The process id in an `identity` of this PID namespace; `None` for any other name."""
    parts = name.split("-")
    if len(parts) != 3 or parts[0] != str(Path("/proc/self/ns/pid").stat().st_ino) or not parts[1].isdigit():
        return None
    return int(parts[1])


def children(pid: int) -> list[int]:
    """The direct children of a process, none when it is gone."""
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = _fields(int(entry.name))
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(entry.name))
    return found


def descendants(pid: int) -> list[int]:
    """Every process below one that has not ended, in one look at all of them."""
    below: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, parent, *_ = _fields(int(entry.name))
        except OSError:
            continue
        if state not in "ZX":
            below.setdefault(int(parent), []).append(int(entry.name))
    found = list(below.get(pid, ()))
    for each in found:
        found += below.get(each, ())
    return found


def _start_time(pid: int) -> int:
    return int(_fields(pid)[19])


def _fields(pid: int) -> list[str]:
    text = Path(f"/proc/{pid}/stat").read_bytes().decode("utf-8", "replace")
    return text[text.rindex(")") + 2 :].split()
