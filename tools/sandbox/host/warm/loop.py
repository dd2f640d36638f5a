"""The fork server: a program's own interpreter, stopped before the program, which then runs in its forks."""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import importlib
import json
import os
import select
import signal
import site
import socket
import struct
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.sandbox.host.guard import enter_guarded
from tools.sandbox.host.warm import VARIABLE
from tools.sandbox.inside.kernel import failure, libc

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_STREAMS = 3
_AT_START = frozenset(sys.modules)
"""Modules that the interpreter imports by itself, such as those of `.pth` files."""
_CLONE3, _CLONE_PARENT = 435, 0x8000


def serve(hook: str) -> None:
    """Import modules, then fork a process for each request; end when the owner closes its socket.

    Only the forked processes return from this call.
    """
    sys.path.remove(hook)
    number, owner, path = json.loads(os.environ.pop(VARIABLE))
    os.environ.pop("PYTHONPATH")
    if path is not None:
        os.environ["PYTHONPATH"] = path
    _import_next_sitecustomize()
    control, coerced = socket.socket(fileno=number), os.environ.get("LC_CTYPE")
    control.set_inheritable(False)
    try:
        request, _ = _receive(control)
        before = {**os.environ}
        _end_with(control)
        report = _load(request["modules"], request["differing"], request["first_path"])
        fcntl.fcntl(control, fcntl.F_SETFL, os.O_RDWR)
        after = {name: os.environ.get(name) for name in {*before, *os.environ}}
        written = {name: value for name, value in after.items() if value != before.get(name)}
        control.send(json.dumps(report).encode())
        owner_end, poll = os.pidfd_open(owner), select.poll()
        for fd in (owner_end, control.fileno()):
            poll.register(fd, select.POLLIN)
        gc.collect()
        gc.freeze()  # garbage collection must not write to memory that the forks share
        while True:
            if owner_end in dict(poll.poll()):
                raise EOFError
            request, fds = _receive(control)
            if not (pid := _fork_sibling()):
                break
            for fd in fds:
                os.close(fd)
            control.send(str(pid).encode())
    except (OSError, EOFError):  # the owner has ended
        os.killpg(0, signal.SIGKILL)  # with the programs that have no guards
        raise
    control.detach()
    _become(request, fds, owner, {"LC_CTYPE": coerced, **written} if coerced else written)


def _end_with(control: socket.socket) -> None:
    """Have the kernel kill this process group when the owner's end closes, since an import may hang."""
    fcntl.fcntl(control, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(control, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(control, fcntl.F_SETFL, os.O_RDWR | os.O_ASYNC)


def _import_next_sitecustomize() -> None:
    ours = sys.modules.pop("sitecustomize")
    try:
        importlib.import_module("sitecustomize")
    except ImportError:
        sys.modules["sitecustomize"] = ours


def _receive(control: socket.socket) -> tuple[dict[str, Any], list[int]]:
    mark, fds, _, _ = socket.recv_fds(control, 1, 1 + _STREAMS)
    if not mark:
        raise EOFError
    with os.fdopen(fds[0], "rb") as file:
        return json.loads(file.read()), fds[1:]


def _fork_sibling() -> int:
    """Fork a process whose parent is that of this process."""
    api = ctypes.pythonapi
    api.PyOS_BeforeFork()
    arguments = struct.pack("11Q", _CLONE_PARENT, *[0] * 10)
    pid: int = libc.syscall(ctypes.c_long(_CLONE3), arguments, ctypes.c_size_t(len(arguments)))
    (api.PyOS_AfterFork_Parent if pid else api.PyOS_AfterFork_Child)()
    if pid < 0:
        raise failure("clone3")
    return pid


def _become(request: dict[str, Any], streams: list[int], owner: int, written: dict[str, str | None]) -> None:
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
    _close_others()
    if request["folder"] is not None:
        os.setsid()
        enter_guarded(owner, request["folder"])
        _close_others()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    for name, value in written.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    _renew_user_base()
    sys.argv += request["arguments"]
    sys.orig_argv += request["arguments"]
    if "numpy.random" in sys.modules:  # `random` does this by itself
        sys.modules["numpy.random"].seed()
    if request["modules_file"] is not None:
        atexit.register(_write_modules, request["modules_file"])


def _renew_user_base() -> None:
    """Compute again what `site` and `sysconfig` keep of HOME."""
    site.USER_BASE = site.USER_SITE = None
    site.getusersitepackages()
    known = getattr(sys.modules.get("sysconfig"), "_CONFIG_VARS", None)
    if known:
        known["userbase"] = site.USER_BASE


def _close_others() -> None:
    for fd in map(int, _open_files()):
        if fd >= _STREAMS:
            os.close(fd)


def _write_modules(path: str) -> None:
    """Write the names of modules that the program imported from packages, in their order."""
    found: list[str] = []
    for name, module in [*sys.modules.items()]:
        if name in _AT_START:
            continue
        spec = getattr(module, "__dict__", {}).get("__spec__")
        origin = getattr(spec, "origin", None)
        if isinstance(origin, str) and {"site-packages", "dist-packages"} & {*Path(origin).parts}:
            found.append(name)
    Path(path).write_text("\n".join(found), encoding="utf-8")


# Imports.


def _load(modules: list[str], differing: list[str], first_path: str | None) -> dict[str, Any]:
    before, started = _open_files(), time.process_time()
    reads, threaded = _Reads(differing), ""
    environ: Any = os.environ
    usual, environ.__class__ = environ.__class__, _watched(type(environ), reads)
    sys.path[:0] = [] if first_path is None else [first_path]
    try:
        for name in modules:
            try:
                importlib.import_module(name)
            except Exception:  # noqa: BLE001  # the program will report it, if it imports this module
                continue
            if not threaded and _has_threads():
                threaded = name
    finally:
        environ.__class__ = usual
        if first_path in sys.path:
            sys.path.remove(first_path)
        sys.stdout.flush()
        sys.stderr.flush()
    return {
        "reads": reads.found,
        "threaded": threaded if _has_threads() else "",
        "opened": sorted({*_open_files().items()} - {*before.items()}),
        "cpu_s": time.process_time() - started,
    }


def _has_threads() -> bool:
    return len([*Path("/proc/self/task").iterdir()]) > 1


def _open_files() -> dict[str, str]:
    found: dict[str, str] = {}
    for fd in [*Path("/proc/self/fd").iterdir()]:
        try:
            found[fd.name] = str(fd.readlink())
        except OSError:
            continue  # the listing's own
    return found


class _Reads:
    """Notes which variables are read while modules are imported, and by which modules."""

    def __init__(self, differing: list[str]) -> None:
        self._differing = {*differing}
        self.found: dict[str, list[str]] = {}

    def note(self, name: str) -> None:
        if name not in self._differing:
            return
        frame: FrameType | None = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]  # inspect loads slowly
        modules: list[str] = []
        while frame is not None:
            module = str(frame.f_globals.get("__name__"))
            if module == "sysconfig":
                return  # `_renew_user_base`
            if frame.f_code.co_name == "<module>":
                modules.append(module)
            frame = frame.f_back
        self.found[name] = [*dict.fromkeys([*self.found.get(name, []), *modules])]


def _watched(base: Any, reads: _Reads) -> Any:
    class Environ(base):
        def __getitem__(self, key: str) -> str:
            reads.note(key)
            return base.__getitem__(self, key)

        def __iter__(self) -> Iterator[str]:
            for key in base.__iter__(self):
                reads.note(key)
                yield key

    return Environ
