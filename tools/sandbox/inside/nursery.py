"""Forks supervisors from a process that is already warm: a sandbox starts without starting an interpreter.

It runs on the host with nothing of the host's in it: a made-up environment, no descriptor but its requests.
"""

from __future__ import annotations

import _socket
import gc
import os

from tools.sandbox.inside import fence, frames, rights
from tools.sandbox.inside.birth import CONTROL, keep_only, score, tell_birth, write
from tools.sandbox.inside.prctl import adopt_orphans
from tools.sandbox.inside.signals import forget_children
from tools.sandbox.inside.spawn import own_descriptor_limit

_REQUEST_BYTES = 1 << 16
_FDS = 3


def enter(requests: int) -> None:
    """Fork a supervisor of tier C for each request until the host is gone."""
    own_descriptor_limit()
    # Whatever its number is, no program of an agent may have it.
    os.set_inheritable(requests, False)
    # Nobody waits for them: they are reaped by the kernel, and the host has descriptors to see their end.
    forget_children()
    adopt_orphans()
    gc.collect()
    # What is here now stays shared with every child: no collection touches it.
    gc.freeze()
    host = _socket.socket(fileno=requests)
    while True:
        request, fds, _ = rights.receive(host, _REQUEST_BYTES, _FDS)
        if not request:
            os._exit(0)
        if os.fork() == 0:
            _bear(request, fds)
        for fd in fds:
            os.close(fd)


def _bear(request: bytes, fds: list[int]) -> None:
    try:
        keep_only(fds)
        os.setsid()
        for path in frames.unpack(request)[1]:
            write(os.fsdecode(path), b"0")
        score()
        tell_birth()
        fence.enter(CONTROL)
    except BaseException as error:  # noqa: BLE001  # the host is told why nothing was born
        os.write(CONTROL, repr(error).encode()[:2000])
    finally:
        os._exit(70)
