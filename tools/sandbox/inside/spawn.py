"""Starting agent processes: pipes, limits and the drop to the agent's user."""

from __future__ import annotations

import os
import resource

from tools.sandbox.inside.signals import as_at_birth

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


_DESCRIPTORS = 4096


class StartError(Exception):
    """A command did not start: at which step, and the errno."""

    def __init__(self, step: str, code: int) -> None:
        super().__init__(step, code)
        self.step = step
        self.code = code


class Account:
    """Who agent processes are and what each of them may use."""

    __slots__ = ("_drop", "_env", "_gid", "_limits", "_oom_score", "_oom_score_fd", "_uid", "workdir")

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
        _write("/proc/self/oom_score_adj", b"500")
        for kind, value in self._limits if bounded else ():
            resource.setrlimit(kind, (value, value))
        if self._drop:
            os.setgroups([])
            os.setresgid(self._gid, self._gid, self._gid)
            os.setresuid(self._uid, self._uid, self._uid)
        as_at_birth()
        os.umask(0o022)


def own_descriptor_limit() -> None:
    """Set how many descriptors this process and all below it may have, however few its parent has."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most if 0 <= most < _DESCRIPTORS else _DESCRIPTORS, most))


def fork(
    account: Account, stdio: tuple[int, int, int], action: Callable[[], object], bounded: bool = True
) -> int:
    """Fork a child that becomes the agent and runs `action`, which executes a program or returns a code.

    Raises:
        StartError: `action` or a step before it failed before anything ran.
    """
    errors, report = os.pipe2(os.O_CLOEXEC)
    try:
        pid = account.fork()
    except OSError as error:
        os.close(errors)
        os.close(report)
        raise StartError("fork", error.errno or 0) from None
    if pid == 0:
        try:
            _child(account, stdio, action, report, bounded)
        finally:
            os._exit(70)
    os.close(report)
    try:
        text = os.read(errors, 64)
    finally:
        os.close(errors)
    if text:
        os.waitpid(pid, 0)
        step, code = text.decode().split()
        raise StartError(step, int(code))
    return pid


def execute(argv: list[str], env: dict[str, str], cwd: str) -> Callable[[], object]:
    """An action that runs a program in a directory."""

    def action() -> None:
        try:
            os.chdir(cwd)
        except OSError as error:
            raise StartError("cwd", error.errno or 0) from None
        os.execvpe(argv[0], argv, env)

    return action


def only_stdio(operation: Callable[[], int]) -> Callable[[], object]:
    """An action that runs a function of ours with no other descriptor open; its result is the exit code."""

    def action() -> int:
        os.closerange(3, _DESCRIPTORS)
        return operation()

    return action


def pipe_for_output() -> tuple[int, int]:
    """A pipe whose read end does not block; the agent may open its write end again as `/dev/stdout`."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(reader, False)
    os.fchmod(writer, 0o622)
    return reader, writer


def _child(
    account: Account, stdio: tuple[int, int, int], action: Callable[[], object], report: int, bounded: bool
) -> None:
    try:
        os.setsid()
        # Duplicates first: a low number may be the target of another stream.
        high = [os.dup2(fd, 100 + target, inheritable=False) for target, fd in enumerate(stdio)]
        for target, fd in enumerate(high):
            os.dup2(fd, target, inheritable=True)
        account.enter(bounded)
        result = action()
        os._exit(result if isinstance(result, int) else 70)
    except StartError as error:
        os.write(report, f"{error.step} {error.code}".encode())
    except OSError as error:
        os.write(report, f"exec {error.errno or 0}".encode())


def _write(path: str, data: bytes) -> None:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.write(fd, data)
    except OSError:
        return
    finally:
        os.close(fd)
