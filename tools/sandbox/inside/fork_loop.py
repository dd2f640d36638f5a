"""Forks supervisors from a process that is already warm: a sandbox starts without starting an interpreter.

Nothing of the host's is in it: a made-up environment, no descriptor but its requests.
"""

from __future__ import annotations

import gc
import marshal
import os
import socket
from typing import Protocol

from tools.sandbox.inside.messages import Died, Forked, encode
from tools.sandbox.inside.monitor import Monitored
from tools.sandbox.inside.namespaced import Namespaced
from tools.sandbox.inside.prctl import CONTROL, write_file
from tools.sandbox.inside.spawn import own_descriptor_limit
from tools.sandbox.inside.supervisor import prepare_signals

_SETUP_BYTES = 1 << 16
_REQUEST_BYTES, _FDS = 64, 8
_WORDS = 2000


class Way(Protocol):
    """How supervisors of one kind come to be."""

    def fork(self) -> tuple[int, int]:
        """Fork; process id and a descriptor of the child, or 0 and -1 in the child itself.

        Raises:
            OSError: there is no child.
        """
        ...

    def join(self) -> None:
        """In a child, before it joins its control groups."""
        ...

    def serve(self) -> None:
        """In a child: become the supervisor that the host tells over `CONTROL`."""
        ...


def enter(requests: int) -> None:
    """Take the setup, then fork a supervisor for each request until the host is gone."""
    own_descriptor_limit()
    # Whatever its number is, no program of an agent may have it.
    os.set_inheritable(requests, False)
    prepare_signals(_child_ended)
    host = socket.socket(fileno=requests)
    setup = marshal.loads(host.recv(_SETUP_BYTES))
    _be_killed_last()
    way: Way = Monitored() if setup is None else Namespaced(*setup)
    gc.collect()
    # What is here now stays shared with every child: no collection touches it.
    gc.freeze()
    while True:
        request, fds, _, _ = socket.recv_fds(host, _REQUEST_BYTES, _FDS)
        if not request:
            os._exit(0)
        try:
            pid, pidfd = way.fork()
        except OSError as error:
            host.send(encode(Died(repr(error))))
        else:
            if pid == 0:
                _become(way, fds, int(request))
            socket.send_fds(host, [encode(Forked())], [pidfd])
            os.close(pidfd)
        for fd in fds:
            os.close(fd)


_forks = True
"""Whether this is the fork server itself, and not a child of it."""


def _child_ended(_number: int, _frame: object) -> None:
    """Reap what the fork server forked, whose end the host sees; children wait for theirs elsewhere."""
    try:
        while _forks and os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _become(way: Way, fds: list[int], groups: int) -> None:
    global _forks
    _forks = False
    try:
        _keep_only(fds)
        os.setsid()
        way.join()
        for fd in range(CONTROL + len(fds) - groups, CONTROL + len(fds)):
            os.write(fd, b"0")
            os.close(fd)
        way.serve()
    except BaseException as error:  # noqa: BLE001  # the host is told why there is no supervisor
        os.write(CONTROL, encode(Died(repr(error)[:_WORDS])))
    finally:
        os._exit(70)


def _keep_only(fds: list[int]) -> None:
    """Give these descriptors the numbers from `CONTROL` on and close all others but the standard ones."""
    high = [os.dup2(fd, 100 + number, inheritable=False) for number, fd in enumerate(fds)]
    for number, fd in enumerate(high):
        os.dup2(fd, CONTROL + number, inheritable=False)
    os.closerange(CONTROL + len(fds), 4096)


def _be_killed_last() -> None:
    """By a shortage of memory; what is forked from here inherits it."""
    try:
        write_file("/proc/self/oom_score_adj", b"-900")
    except PermissionError:
        pass  # no root with this privilege; the agent's processes are preferred anyway
