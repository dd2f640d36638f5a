"""Who agent processes are and what each of them may use."""

from __future__ import annotations

import os
import resource
import signal

from tools.sandbox.inside.prctl import write_file


class Account:
    """The agent's user and limits."""

    def __init__(self, settings: dict[str, str], env: dict[str, str]) -> None:
        self._drop = settings["drop"] == "1"
        self._uid = int(settings["uid"])
        self._gid = int(settings["gid"])
        self._env = env
        self._oom_score_fd = int(settings.get("oom_score_fd", -1))
        self._oom_score = settings.get("oom_score", "0").encode()
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

        A supervisor that hides itself lets its children not write their own score: they inherit it.
        """
        if self._oom_score_fd < 0:
            return os.fork()
        os.pwrite(self._oom_score_fd, b"500", 0)
        try:
            return os.fork()
        finally:
            # In the child too it is the score of the supervisor.
            os.pwrite(self._oom_score_fd, self._oom_score, 0)

    def enter(self, bounded: bool) -> None:
        """Become the agent, for good; called in a forked child. Our own file writes are not `bounded`."""
        # Without the drop the value can be lowered again, with it the kernel keeps it as the floor.
        try:
            write_file("/proc/self/oom_score_adj", b"500")
        except OSError:
            pass  # no /proc of its own, or a score that is higher
        for kind, value in self._limits if bounded else ():
            resource.setrlimit(kind, (value, value))
        if self._drop:
            os.setgroups([])
            os.setresgid(self._gid, self._gid, self._gid)
            os.setresuid(self._uid, self._uid, self._uid)
        # A program would inherit what Python did to these.
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        os.umask(0o022)


def keep_score_open(settings: dict[str, str]) -> None:
    """Open this process's score of who is killed first, which it cannot when it hides itself."""
    fd = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
    settings["oom_score_fd"] = str(fd)
    settings["oom_score"] = os.pread(fd, 16, 0).decode().strip()
