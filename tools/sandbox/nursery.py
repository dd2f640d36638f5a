"""The warm processes sandboxes are forked from: one of each kind, started when it is first needed."""

import marshal
import os
import select
import signal
import socket
import threading
import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

from tools.sandbox import machine, rootfs
from tools.sandbox.base import Network
from tools.sandbox.cgroup import Group
from tools.sandbox.inside import frames
from tools.sandbox.program import Program

Kind = Literal["none", "full", "fenced"]
"""Supervisors in namespaces, without or with the host's network; supervisors behind a fence."""

_FENCED = ("prctl", "confine", "landlock", "quota", "fence", "birth", "nursery")
_SPACES = ("prctl", "confine", "mounts", "birth", "spaces")
GUARD_FD, OOM_FD = 4, 5
"""Numbers that the descriptors of a request have in the supervisor; its channel is 3."""
_BIRTH_S = 30.0
_END_S = 2.0


class Newborn:
    """A supervisor that was forked for us; it is no child of ours."""

    def __init__(self, pidfd: int) -> None:
        self._pidfd = pidfd

    @property
    def pid(self) -> int:
        """Its process id, -1 when it ended."""
        for line in Path(f"/proc/self/fdinfo/{self._pidfd}").read_text().splitlines():
            if line.startswith("Pid:"):
                return int(line.split()[1])
        return -1

    def ends(self, *, within_s: float) -> bool:
        """Wait for its end."""
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(within_s * 1000))

    def kill(self) -> None:
        """End it; everything in its PID namespace ends with it."""
        try:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        except ProcessLookupError:
            return

    def last_words(self) -> str:
        """Nothing: it tells its troubles over its channel."""
        return ""

    def close(self) -> None:
        """Give back the descriptor."""
        os.close(self._pidfd)


class Nursery:
    """A process that forks supervisors; it ends when we do."""

    def __init__(self, kind: Kind) -> None:
        self._owner = os.getpid()
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            code, fd = machine.supervisor_code(_FENCED if kind == "fenced" else _SPACES), theirs.fileno()
            command = [machine.interpreter(), "-I", "-S", "-c", machine.BOOTSTRAP, str(code), str(fd)]
            self._program = Program(command, [code, fd])
        self._requests.settimeout(_BIRTH_S)
        self._tells_births = kind != "fenced"
        """Answers a request itself; otherwise who is born does, over the channel."""
        self._turn = threading.Lock()
        self._lost = False
        # With its last user, not when it is replaced: somebody may still wait for an answer.
        self._give_back = weakref.finalize(self, _give_back, self._requests, self._program)
        self._give_back.atexit = False
        if kind != "fenced":
            try:
                self._requests.send(_birthplace(kind))
            except OSError:
                raise self._given_up() from None

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._program.pid

    @property
    def usable(self) -> bool:
        """Whether it lives and is ours; after a fork of this process it is the parent's."""
        return not self._lost and self._owner == os.getpid() and not self._program.ends(within_s=0)

    def bear(self, ours: socket.socket, theirs: socket.socket, request: bytes, fds: Sequence[int]) -> Newborn:
        """Have a supervisor forked that talks to `ours` over `theirs`, which is closed here.

        Raises:
            OSError: it was not born; the message says why.
        """
        if self._tells_births:
            with self._turn, theirs:
                said, passed = self._asked(request, [theirs.fileno(), *fds])
        else:
            said, passed = self._heard(ours, theirs, request, fds)
        if said[:1] == frames.BORN and passed:
            return Newborn(passed[0])
        raise OSError(said.decode("utf-8", "replace"))

    def _asked(self, request: bytes, fds: Sequence[int]) -> tuple[bytes, list[int]]:
        """The nursery's own answer. After none it is given up: the next would be a stranger's."""
        if self._lost:
            raise OSError("the process to fork from died meanwhile")
        try:
            socket.send_fds(self._requests, [request], fds)
            said, passed, _, _ = socket.recv_fds(self._requests, 2000, 1)
            if said:
                return said, passed
        except OSError:
            pass
        raise self._given_up()

    def _given_up(self) -> OSError:
        self._lost = True
        self._program.ends(within_s=_END_S)
        words = self._program.last_words()
        # Whoever keeps the error keeps this object, too.
        self._give_back()
        return OSError(f"no process to fork from: {words}")

    def _heard(
        self, ours: socket.socket, theirs: socket.socket, request: bytes, fds: Sequence[int]
    ) -> tuple[bytes, list[int]]:
        """The answer of who was born."""
        ours.settimeout(_BIRTH_S)
        try:
            with theirs:
                socket.send_fds(self._requests, [request], [theirs.fileno(), *fds])
            said, passed, _, _ = socket.recv_fds(ours, 2000, 1)
        except ConnectionError:
            said, passed = b"", []
        if not said:
            self._program.ends(within_s=_END_S)
            raise OSError(f"no process to fork from: {self._program.last_words()}")
        return said, passed


def descriptors(group: Group, passed: ExitStack) -> list[int]:
    """What a supervisor gets beside its channel, in the order of their numbers; `passed` closes ours."""
    opened = [os.pidfd_open(os.getpid())]
    passed.callback(os.close, opened[0])
    if group.oom_file:
        opened.append(os.open(group.oom_file, os.O_RDONLY))
        passed.callback(os.close, opened[1])
    return opened


def numbers(group: Group) -> dict[str, str]:
    """The settings that tell a supervisor which of them it has."""
    return {"guard_fd": str(GUARD_FD), "oom_fd": str(OOM_FD if group.oom_file else -1)}


def _give_back(requests: socket.socket, program: Program) -> None:
    requests.close()
    program.close()


_lock = threading.Lock()
_current: dict[Kind, Nursery] = {}


def nursery(kind: Kind = "none") -> Nursery:
    """The nursery of this process for one kind, started when there is none that lives.

    Raises:
        OSError: it cannot be started.
    """
    with _lock:
        if kind not in _current or not _current[kind].usable:
            _current[kind] = Nursery(kind)
        return _current[kind]


def _birthplace(network: Network) -> bytes:
    """What a nursery of namespaces has to know first: its user, and the root that all of them share."""
    uid, gid = os.getuid(), os.getgid()
    maps = (b"", b"") if os.geteuid() == 0 else (b"%d %d 1" % (uid, uid), b"%d %d 1" % (gid, gid))
    steps = rootfs.shared_steps(network, extra=machine.extra_directories())
    return marshal.dumps((*maps, network, [step.words() for step in steps]), 2)
