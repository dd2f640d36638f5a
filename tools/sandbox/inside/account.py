"""Who agent processes are and what each of them may use."""

from __future__ import annotations

import os
import resource
import signal

_AGENTS_SCORE = 500
"""Of who is killed first in a shortage of memory, from -1000 to 1000; programs of the host have 0."""


class Account:
    """The agent's user and limits."""

    def __init__(self, settings: dict[str, str], env: dict[str, str]) -> None:
        self._drop = settings["drop"] == "1"
        self._uid = int(settings["uid"])
        self._gid = int(settings["gid"])
        self._env = env
        self._score_fd = int(settings["score_fd"])
        self._score = int(settings["score"])
        self.workdir = settings["workdir"]
        self._limits = [(resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, int(settings["fsize"]))]
        if settings["nproc"]:
            self._limits.append((resource.RLIMIT_NPROC, int(settings["nproc"])))
        if settings["as"]:
            self._limits.append((resource.RLIMIT_AS, int(settings["as"])))

    def environment(self, extra: dict[str, str]) -> dict[str, str]:
        """The environment of a command."""
        return {**self._env, **extra}

    def own(self, path: str) -> None:
        """Give a directory to the agent."""
        if self._drop:
            os.chown(path, self._uid, self._gid)

    def fork(self) -> int:
        """Fork a child that a shortage of memory ends before this process.

        It inherits its score and, where this process has the privilege, that it may have no lower one.
        """
        os.pwrite(self._score_fd, b"%d" % max(_AGENTS_SCORE, self._score), 0)
        try:
            return os.fork()
        finally:
            # In the child too it is the score of the supervisor.
            os.pwrite(self._score_fd, b"%d" % self._score, 0)

    def enter(self, bounded: bool) -> None:
        """Become the agent, for good; called in a forked child. Our own file writes are not `bounded`."""
        for kind, value in self._limits if bounded else ():
            _, most = resource.getrlimit(kind)
            value = value if most == resource.RLIM_INFINITY else min(value, most)
            resource.setrlimit(kind, (value, value))
        if self._drop:
            os.setgroups([])
            os.setresgid(self._gid, self._gid, self._gid)
            os.setresuid(self._uid, self._uid, self._uid)
        # A program would inherit what Python did to these, and what `nohup` did.
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        os.umask(0o022)


def keep_score_open(settings: dict[str, str]) -> None:
    """Open this process's score of who is killed first, before it hides itself or `/proc` is read-only."""
    fd = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
    settings["score_fd"] = str(fd)
    settings["score"] = os.pread(fd, 16, 0).decode().strip()
