"""Telling for sure whether the process that owns something still lives."""

from pathlib import Path

from tools.sandbox.inside.processes import process_table, read_entry


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
    return [child for child, (parent, _) in process_table(ended=True).items() if parent == pid]


def _start_time(pid: int) -> int:
    return read_entry(pid)[1]
