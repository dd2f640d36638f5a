"""Which processes run below the supervisor, and how all those of one command die."""

from __future__ import annotations

import os
import signal
import time

Identity = tuple[int, int]
"""Process id and start time: an id alone may be used again."""


def process_table(*, ended: bool = False) -> dict[int, tuple[int, int]]:
    """Every process that can be seen: id to parent id and start time.

    Args:
        ended: whether zombies are among them.
    """
    table: dict[int, tuple[int, int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                table[int(name)] = read_entry(int(name), ended=ended)
            except OSError:
                continue  # gone meanwhile
    return table


def read_entry(pid: int, *, ended: bool = True) -> tuple[int, int]:
    """Parent id and start time of a process."""
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
    """Every live descendant of a process, or of this one: id to parent id and start time."""
    table, top = process_table(), below or os.getpid()
    return {pid: entry for pid, entry in table.items() if pid != top and top in _ancestors(pid, table)}


def runnable() -> set[int]:
    """The descendants of this process that use a processor, or wait for one."""
    return {pid for pid in running() if _state(pid) == "R"}


def snapshot() -> set[Identity]:
    """The processes that live now, to find new ones later."""
    return {(pid, start) for pid, (_, start) in running().items()}


def kill_new(before: set[Identity], shell: int = 0, wait_s: float = 2.0) -> None:
    """Kill what started since `before`, whatever group or session it moved to.

    Children of an earlier background job live on; children of the `shell` do not. All are stopped before
    any is killed, so that a fork bomb cannot refill the places of its dead.
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
    """Every process below this one, stopped until `end`; those that were stopped before stay so.

    One that goes on by itself, as a timer of the kernel can make it, is killed.
    """

    def __init__(self) -> None:
        self._stopped: set[Identity] = set()
        self.extend()

    def extend(self, wait_s: float = 10.0) -> None:
        """Stop all that runs now; a fork bomb gets no further than its places."""
        deadline = time.monotonic() + wait_s
        while True:
            awake = _awake(snapshot())
            # In an uninterruptible wait the signal is taken at its end, before anything else.
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
        """Kill those that went on by themselves, and what they started meanwhile."""
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
    """Signal a process that may be gone already, or by now belong to another user."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def end_holders(inode: int) -> None:
    """Kill who holds a lease on a file."""
    with open("/proc/locks") as file:
        fields = [line.split() for line in file]
    for lease in fields:
        if lease[1] == "LEASE" and lease[5].rpartition(":")[2] == str(inode) and int(lease[4]) > 0:
            send(int(lease[4]), signal.SIGKILL)


def _state(pid: int) -> str:
    """The kernel's letter for what a process does; nothing for one that is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return chr(file.read(4096).rpartition(b")")[2].split(None, 1)[0][0])
    except OSError:
        return ""


def _awake(processes: set[Identity]) -> dict[Identity, str]:
    """Those that are neither stopped nor gone, and what they do."""
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
