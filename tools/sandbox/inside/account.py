"""User and limits of agent processes, and the host's first message to a supervisor, which contains them."""

from __future__ import annotations

import marshal
import os
import resource
import signal
from typing import NamedTuple

_AGENTS_SCORE = 500
"""OOM score of agent processes (-1000 to 1000, higher is killed first); programs of the host have 0."""


class Account:
    def __init__(self, settings: dict[str, str], env: dict[str, str]) -> None:
        self._drop = settings["drop"] == "1"
        self._uid = int(settings["uid"])
        self._gid = int(settings["gid"])
        self._env = env
        self._score_fd = int(settings["score_fd"])
        self._score = int(settings["score"])
        self._join_fds = [int(fd) for fd in settings.get("join_fds", "").split()]
        self.workdir = settings["workdir"]
        self._limits = [(resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, int(settings["fsize"]))]
        if settings["nproc"]:
            self._limits.append((resource.RLIMIT_NPROC, int(settings["nproc"])))
        if settings["as"]:
            self._limits.append((resource.RLIMIT_AS, int(settings["as"])))

    def environment(self, extra: dict[str, str]) -> dict[str, str]:
        return {**self._env, **extra}

    def own(self, path: str) -> None:
        if self._drop:
            os.chown(path, self._uid, self._gid)

    def fork(self, is_own: bool = False) -> int:
        """Fork a child that the OOM killer prefers to this process, unless it does our own work."""
        if is_own:
            return os.fork()
        os.pwrite(self._score_fd, b"%d" % max(_AGENTS_SCORE, self._score), 0)
        try:
            return os.fork()
        finally:
            os.pwrite(self._score_fd, b"%d" % self._score, 0)

    def enter(self, bounded: bool) -> None:
        """Become the agent irrevocably; only programs of the agent are `bounded`."""
        for fd in self._join_fds if bounded else ():
            os.write(fd, b"0")
        for kind, value in self._limits if bounded else ():
            _, most = resource.getrlimit(kind)
            value = value if most == resource.RLIM_INFINITY else min(value, most)
            resource.setrlimit(kind, (value, value))
        if self._drop:
            os.setgroups([])
            os.setresgid(self._gid, self._gid, self._gid)
            os.setresuid(self._uid, self._uid, self._uid)
        # Programs would inherit that Python and `nohup` ignore these signals.
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        os.umask(0o022)


def keep_score_open(settings: dict[str, str]) -> None:
    """Open this process's OOM score before it becomes inaccessible."""
    fd = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
    settings["score_fd"] = str(fd)
    settings["score"] = os.pread(fd, 16, 0).decode().strip()


_HEADER_BYTES = 4


class Configuration(NamedTuple):
    settings: dict[str, str]
    env: dict[str, str]
    seccomp: bytes
    """A BPF program; empty for no filter."""
    steps: list[list[str]]
    """Steps of the root in namespaces, otherwise Landlock rules."""
    files: list[tuple[str, bytes]]

    def encode(self) -> bytes:
        body = marshal.dumps(tuple(self), 2)
        return len(body).to_bytes(_HEADER_BYTES, "big") + body

    @classmethod
    def read(cls, control: int) -> Configuration:
        size = int.from_bytes(_read_exactly(control, _HEADER_BYTES), "big")
        return cls(*marshal.loads(_read_exactly(control, size)))


def _read_exactly(fd: int, count: int) -> bytes:
    parts: list[bytes] = []
    while count > 0:
        data = os.read(fd, min(count, 1 << 20))
        if not data:
            raise EOFError
        parts.append(data)
        count -= len(data)
    return b"".join(parts)
