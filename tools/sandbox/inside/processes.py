"""Finding, stopping and killing processes below the supervisor."""

from __future__ import annotations

import os
import signal
import time

Identity = tuple[int, int]
"""Process id and start time; ids alone are reused."""


def process_table(*, ended: bool = False) -> dict[int, tuple[int, int]]:
    """Return visible processes by id: parent id and start time."""
    table: dict[int, tuple[int, int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                table[int(name)] = read_entry(int(name), ended=ended)
            except OSError:
                continue
    return table


def read_entry(pid: int, *, ended: bool = True) -> tuple[int, int]:
    fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = os.read(fd, 4096)
    finally:
        os.close(fd)
    fields = text[text.rindex(b")") + 2 :].split()
    if fields[0] in (b"Z", b"X") and not ended:
        raise ProcessLookupError(pid)
    return int(fields[1]), int(fields[19])


def running(below: int = 0) -> dict[int, tuple[int, int]]:
    """Return live descendants of a process (default: this one)."""
    table, top = process_table(), below or os.getpid()
    return {pid: entry for pid, entry in table.items() if pid != top and top in _ancestors(pid, table)}


def runnable() -> set[int]:
    return {pid for pid in running() if _state(pid) == "R"}


def snapshot() -> set[Identity]:
    return {(pid, start) for pid, (_, start) in running().items()}


def kill_new(before: set[Identity], shell: int = 0, wait_s: float = 2.0) -> None:
    """Kill processes that started since `before`, whatever group or session they moved to.

    Children of earlier jobs survive, children of the `shell` do not. All are stopped first, so that a fork
    bomb cannot refill.
    """
    deadline = time.monotonic() + wait_s
    while True:
        stopped: set[Identity] = set()
        while fresh := _new(before, shell) - stopped:
            for pid, _ in fresh:
                send(pid, signal.SIGSTOP)
            stopped |= fresh
        for pid, _ in stopped:
            send(pid, signal.SIGKILL)
        if not stopped or time.monotonic() > deadline:
            return
        time.sleep(0.0005)


class Pause:
    """Stops every process below this one until `end`; one that resumes by itself is killed."""

    def __init__(self) -> None:
        self._stopped: set[Identity] = set()
        self.extend()

    def extend(self, wait_s: float = 10.0) -> None:
        deadline = time.monotonic() + wait_s
        while True:
            awake = _awake(snapshot())
            # An uninterruptible process stops when its wait ends.
            if all(state == "D" and each in self._stopped for each, state in awake.items()):
                return
            for pid, _ in awake:
                send(pid, signal.SIGSTOP)
            self._stopped |= set(awake)
            if time.monotonic() > deadline:
                return
            time.sleep(0.0005)

    def release(self, pid: int) -> None:
        self._stopped = {each for each in self._stopped if each[0] != pid}
        send(pid, signal.SIGCONT)

    def hold(self) -> None:
        """Kill processes that resumed by themselves, with their descendants."""
        awake = {each for each, state in _awake(self._stopped).items() if state != "D"}
        if awake:
            pids = {pid for pid, _ in awake}
            table = running()
            for pid in table:
                if pid in pids or pids.intersection(_ancestors(pid, table)):
                    send(pid, signal.SIGKILL)

    def end(self) -> None:
        for pid, _ in self._stopped & snapshot():
            send(pid, signal.SIGCONT)


def send(pid: int, number: int) -> None:
    """Signal a process that may be gone or belong to another user."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def end_holders(inode: int) -> None:
    with open("/proc/locks") as file:
        fields = [line.split() for line in file]
    for lease in fields:
        if lease[1] == "LEASE" and lease[5].rpartition(":")[2] == str(inode) and int(lease[4]) > 0:
            send(int(lease[4]), signal.SIGKILL)


def _state(pid: int) -> str:
    """Return the kernel's state letter, empty if the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return chr(file.read(4096).rpartition(b")")[2].split(None, 1)[0][0])
    except OSError:
        return ""


def _awake(processes: set[Identity]) -> dict[Identity, str]:
    """Return the states of processes that are neither stopped nor gone."""
    states = {each: _state(each[0]) for each in processes}
    return {each: state for each, state in states.items() if state and state not in "TtZX"}


def _new(before: set[Identity], shell: int) -> set[Identity]:
    table = running()
    earlier = {pid for pid, (_, start) in table.items() if (pid, start) in before and pid != shell}
    return {
        (pid, start)
        for pid, (_, start) in table.items()
        if pid != shell and (pid, start) not in before and not earlier.intersection(_ancestors(pid, table))
    }


def _ancestors(pid: int, table: dict[int, tuple[int, int]]) -> list[int]:
    chain: list[int] = []
    while pid in table and len(chain) <= len(table):
        pid = table[pid][0]
        chain.append(pid)
    return chain
