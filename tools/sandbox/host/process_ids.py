"""Process identities that are never reused."""

from pathlib import Path

from tools.sandbox.inside.processes import process_table, read_entry


def identity(pid: int) -> str:
    """Return a name of a process that is never reused: PID namespace, id and start time."""
    namespace = Path("/proc/self/ns/pid").stat().st_ino
    return f"{namespace}-{pid}-{_start_time(pid)}"


def has_ended(name: str) -> bool:
    """Whether the process provably ended."""
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
    parts = name.split("-")
    if len(parts) != 3 or parts[0] != str(Path("/proc/self/ns/pid").stat().st_ino) or not parts[1].isdigit():
        return None
    return int(parts[1])


def children(pid: int) -> list[int]:
    return [child for child, (parent, _) in process_table(ended=True).items() if parent == pid]


def _start_time(pid: int) -> int:
    return read_entry(pid)[1]
