"""Fork servers: warm processes that supervisors are forked from."""

import marshal
import os
import select
import signal
import socket
import subprocess
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Literal

from tools.sandbox.base import Network
from tools.sandbox.host import supervisor_code
from tools.sandbox.inside.messages import HEADER_BYTES, Died, Forked, Message, decode
from tools.sandbox.local import rootfs, tiers
from tools.sandbox.local.cgroup import Group

Kind = Literal["none", "full", "plain"]
"""Namespaces without or with the host's network, or no namespaces."""

GUARD_FD, NEXT_FD = 4, 5
"""Descriptor numbers in the supervisor."""
_ANSWER_S = 30.0
_END_S = 2.0
_REAPED_S = 0.1
_WORDS_BYTES = 2000


class ForkedProcess:
    def __init__(self, pidfd: int) -> None:
        self.pidfd = pidfd

    @property
    def pid(self) -> int:
        for line in Path(f"/proc/self/fdinfo/{self.pidfd}").read_text().splitlines():
            if line.startswith("Pid:"):
                return int(line.split()[1])
        return -1

    def ends(self, *, within_s: float) -> bool:
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        if not poll.poll(within_s * 1000):
            return False
        # Until the fork server reaps it, it would count as a leak.
        deadline = time.monotonic() + _REAPED_S
        while self.pid > 0 and time.monotonic() < deadline:
            time.sleep(0.0005)
        return True

    def kill(self) -> None:
        try:
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        except ProcessLookupError:
            return

    def close(self) -> None:
        os.close(self.pidfd)


class ForkServer:
    """A process that forks supervisors and ends with this process."""

    def __init__(self, kind: Kind, read_only: tuple[str, ...] = ()) -> None:
        self._owner = os.getpid()
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._log = tiers.memory_file(b"")
        with theirs:
            self._process = _start_process(theirs.fileno(), self._log)
        self._requests.settimeout(_ANSWER_S)
        self._turn = threading.Lock()
        self._lost = False
        # On garbage collection: when it is replaced, another thread may still await an answer.
        self._give_back = weakref.finalize(self, _give_back, self._requests, self._log)
        self._give_back.atexit = False
        try:
            self._requests.send(_setup(kind, read_only))
        except OSError:
            raise self._give_up() from None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def usable(self) -> bool:
        """Whether it lives and belongs to this process."""
        return not self._lost and self._owner == os.getpid() and self._process.poll() is None

    def fork(
        self, channel: socket.socket, group: Group, tree: int | None = None, owners: tuple[int, ...] = ()
    ) -> ForkedProcess:
        """Fork a supervisor; `owners` are the owner of the files of a `tree`, and the user to map it to."""
        with ExitStack() as passed:
            fds = [os.pidfd_open(os.getpid())]
            passed.callback(os.close, fds[0])
            fds += [] if tree is None else [tree]
            paths = [(path, os.O_WRONLY) for path in (*group.join_files, *group.leave_files)]
            if group.oom_file:
                paths.insert(0, (str(group.oom_file), os.O_RDONLY))
            for path, mode in paths:
                fds.append(os.open(path, mode))
                passed.callback(os.close, fds[-1])
            # The supervisor expects the descriptors of groups last.
            counts = (len(group.join_files), len(group.leave_files), *owners)
            request = " ".join(map(str, counts)).encode()
            answer, received = self._ask(request, [channel.fileno(), *fds])
        if isinstance(answer, Forked) and received:
            return ForkedProcess(received[0])
        raise OSError(answer.reason if isinstance(answer, Died) else "no room for its descriptor")

    def _ask(self, request: bytes, fds: Sequence[int]) -> tuple[Message, list[int]]:
        """Send a request; abandon a server that does not answer, since a late answer would be read next."""
        with self._turn:
            if self._lost:
                raise ConnectionResetError("the process to fork from died meanwhile")
            try:
                socket.send_fds(self._requests, [request], fds)
                answer, received, _, _ = socket.recv_fds(self._requests, _WORDS_BYTES, 1)
                if answer:
                    return decode(answer[HEADER_BYTES:]), received
            except OSError:
                pass
            raise self._give_up()

    def _give_up(self) -> OSError:
        self._lost = True
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        words = self._last_words()
        self._give_back()
        if (self._process.poll() or 0) > 0:  # it ended by itself, with a reason
            return OSError(f"no process to fork from: {words}")
        return ConnectionResetError(f"no process to fork from: {words or 'it was killed or does not answer'}")

    def _last_words(self) -> str:
        size = os.fstat(self._log).st_size
        text = os.pread(self._log, _WORDS_BYTES, max(0, size - _WORDS_BYTES)).decode("utf-8", "replace")
        return (text.strip().splitlines() or [""])[-1]


def numbers(group: Group, *, has_tree: bool = False) -> dict[str, str]:
    """Return the settings that name a supervisor's descriptors."""
    oom_fd = NEXT_FD + has_tree
    first = oom_fd + (group.oom_file is not None)
    joins = range(first, first + len(group.join_files))
    return {
        "guard_fd": str(GUARD_FD),
        "tree_fd": str(NEXT_FD if has_tree else -1),
        "oom_fd": str(oom_fd if group.oom_file else -1),
        "join_fds": " ".join(map(str, joins)),
    }


def fork_server(kind: Kind = "none", read_only: tuple[str, ...] = ()) -> ForkServer:
    """Return this process's fork server, started if necessary."""
    # A recreated folder is a different one.
    key = (kind, tuple((path, Path(path).stat().st_ino) for path in read_only))
    with _lock:
        if key not in _current or not _current[key].usable:
            _current[key] = ForkServer(kind, read_only)
        return _current[key]


_lock = threading.Lock()
_current: dict[tuple[Kind, tuple[tuple[str, int], ...]], ForkServer] = {}


def _start_process(requests: int, log: int) -> "subprocess.Popen[bytes]":
    code = tiers.memory_file(supervisor_code.archive())
    try:
        return subprocess.Popen(
            [tiers.interpreter(), "-I", "-S", "-c", supervisor_code.FORK_SERVER, str(code), str(requests)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, env=tiers.ENVIRONMENT,
            cwd="/", pass_fds=[code, requests], start_new_session=True, umask=0o022,
        )  # fmt: skip
    finally:
        os.close(code)


def _give_back(requests: socket.socket, log: int) -> None:
    requests.close()
    os.close(log)


def _setup(kind: Kind, read_only: tuple[str, ...]) -> bytes:
    if kind == "plain":
        return marshal.dumps(None, 2)
    uid, gid = os.getuid(), os.getgid()
    maps = (b"", b"") if os.geteuid() == 0 else (b"%d %d 1" % (uid, uid), b"%d %d 1" % (gid, gid))
    network: Network = kind
    steps = rootfs.root_steps(network, read_only)
    return marshal.dumps((*maps, network, [step.words() for step in steps]), 2)
