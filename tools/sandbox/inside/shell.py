"""The one persistent bash: it sources each command and tells its exit status on a descriptor of its own."""

from __future__ import annotations

import os

from tools.sandbox.inside.processes import send
from tools.sandbox.inside.signals import SIGKILL, SIGPWR
from tools.sandbox.inside.spawn import Account, fork

RUN_DIR = "/run/turnwise"
_STATUS_FD = 9

# Sourcing keeps directory, variables and functions. Inside the command the status descriptor is closed; what
# the driver itself prints goes nowhere. A trap's `return` leaves one function or the sourced file, and the
# debug trap then refuses every command until all of them are left: nothing after a killed command runs.
_PROLOGUE = r"""shopt -s expand_aliases
__turnwise_again() { return "${__turnwise:-0}"; }
__turnwise_leave() {
  if ((${#FUNCNAME[@]} > 1)); then return 2; fi
  trap - DEBUG; set +T; shopt -u extdebug
}
trap 'shopt -s extdebug; set -T; trap __turnwise_leave DEBUG; return 137' PWR
"""
# The status line is no function: the trap could leave it before the status is out.
_COMMAND = (
    "__turnwise_again; source {d}/command </dev/null >{d}/stdout 2>{d}/stderr 9>&-\n"
    "__turnwise=$?; builtin printf '%s %d\\n' {n} $__turnwise >&9\n"
)


class Shell:
    """A running bash. One command at a time."""

    __slots__ = ("_buffer", "_dir", "_input", "_nonce", "pid", "status_fd")

    def __init__(self, account: Account, run_dir: str) -> None:
        self._dir = run_dir
        self._nonce = b""
        self._buffer = b""
        reader, self._input = os.pipe2(os.O_CLOEXEC)
        self.status_fd, status = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        nowhere = os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)

        def action() -> None:
            os.chdir(account.workdir)
            # By way of a high number: a descriptor copied onto itself would stay close-on-exec.
            os.dup2(os.dup2(status, 103, inheritable=False), _STATUS_FD, inheritable=True)
            os.set_blocking(_STATUS_FD, True)
            env = account.environment({"SHELL": "/bin/bash"})
            os.execve("/bin/bash", ["bash", "--noprofile", "--norc", "-s"], env)

        try:
            self.pid = fork(account, (reader, nowhere, nowhere), action)
        except BaseException:
            os.close(self._input)
            os.close(self.status_fd)
            raise
        finally:
            for fd in (reader, status, nowhere):
                os.close(fd)
        os.write(self._input, _PROLOGUE.encode())

    def run(self, command: bytes) -> tuple[int, int]:
        """Start a command; the read ends of its stdout and stderr come back."""
        # While it redirects, bash keeps the status descriptor under another number: a command that writes to
        # every number would forge a status that it can guess.
        self._nonce = os.urandom(8).hex().encode()
        path = f"{self._dir}/command"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            view = memoryview(command + b"\n")
            while view:
                view = view[os.write(fd, view) :]
        finally:
            os.close(fd)
        ends = (_fifo(f"{self._dir}/stdout"), _fifo(f"{self._dir}/stderr"))
        try:
            os.write(self._input, _COMMAND.format(d=self._dir, n=self._nonce.decode()).encode())
        except BrokenPipeError:
            pass  # the shell just died; its exit ends the command
        return ends

    def status(self) -> int | None:
        """The exit status of the running command, or `None` while it is not there."""
        try:
            self._buffer += os.read(self.status_fd, 4096)
        except BlockingIOError:
            return None
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            nonce, _, code = line.partition(b" ")
            if nonce == self._nonce and code.isdigit():
                return int(code) & 0xFF
        return None

    def interrupt(self) -> None:
        """Ask the shell to leave the command it runs."""
        send(self.pid, SIGPWR)

    def kill(self) -> None:
        """End the shell; it is reaped elsewhere."""
        send(self.pid, SIGKILL)

    def close(self) -> None:
        """Forget the descriptors of a shell that ended."""
        os.close(self._input)
        os.close(self.status_fd)


def _fifo(path: str) -> int:
    # A new one per command: a job in the background keeps the old one and never mixes into this output.
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    os.mkfifo(path)
    os.chmod(path, 0o622)
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
