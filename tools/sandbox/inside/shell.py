"""The one persistent bash: it sources each command and reports its exit status on its own socket.

The shell is the agent's: it can make it tell any status, so a verdict never comes from here. What is kept is
that no other process reports for it, and that a shell that ended reported no success.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import stat
import struct

from tools.sandbox.inside.account import Account
from tools.sandbox.inside.file_operations import write_all
from tools.sandbox.inside.processes import send
from tools.sandbox.inside.spawn import Program, start

_STATUS_FD = 9

# Sourcing keeps directory, variables and functions. Inside the command the status descriptor is closed; what
# the driver itself prints goes nowhere. A trap's `return` leaves one function or the sourced file, and the
# debug trap then refuses every command until all of them are left: nothing after a killed command runs.
_PROLOGUE = r"""shopt -s expand_aliases
__turnwise_again() { __turnwise_ran=$2; return "$1"; }
__turnwise_leave() {
  if ((${#FUNCNAME[@]} > 1)); then return 2; fi
  trap - DEBUG; set +T; shopt -u extdebug
}
trap 'shopt -s extdebug; set -T; trap __turnwise_leave DEBUG; return 137' PWR
"""
# The status line is no function: the trap could leave it before the status is out. It is no part of the line
# above it either, which is dropped as a whole when the command makes an error that ends a line.
_COMMAND = """\\source {d}/command </dev/null >{d}/stdout 2>{d}/stderr 9>&-
\\builtin echo {nonce} $? "$__turnwise_ran" >&9
"""
# Says that the file was read, which a function called `source` would not do. It is no line to be counted.
_FIRST = "{{ __turnwise_again {code} {proof}; }} 2>/dev/null; "
_NOT_RUN = 126
GONE = 129
"""The exit code of a command whose shell ended with 0 before it reported one: as if it had been hung up."""
_MOST_DIGITS = 3
_STATUS_BYTES = 64
_CREDENTIALS = struct.Struct("3i")
"""Process id, user and group of the sender, from the kernel."""


class Shell:
    """A running bash. One command at a time."""

    def __init__(self, account: Account, run_dir: str) -> None:
        self._dir = run_dir
        self._nonce = self._proof = b""
        self._last = 0
        """Status of the last command, which the next one can ask for."""
        reader, self.input_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.input_fd, False)
        self._status, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._status.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.status_fd, told = self._status.fileno(), theirs.detach()
        nowhere = os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)
        env = account.environment({"SHELL": "/bin/bash"})
        bash = Program(["bash", "--noprofile", "--norc", "-s"], env, account.workdir, (told, _STATUS_FD))
        try:
            self.pid = start(account, (reader, nowhere, nowhere), bash)
        except BaseException:
            self.close()
            raise
        finally:
            for fd in (reader, told, nowhere):
                os.close(fd)
        os.write(self.input_fd, _PROLOGUE.encode())

    def run(self, command: bytes) -> tuple[int, int]:
        """Start a command; the read ends of its stdout and stderr come back."""
        # While it redirects, bash keeps the status descriptor under another number: a command that writes to
        # every number would forge a status that it can guess.
        self._nonce, self._proof = os.urandom(8).hex().encode(), os.urandom(8).hex().encode()
        first = _FIRST.format(code=self._last, proof=self._proof.decode()).encode()
        outputs = _fifos(f"{self._dir}/stdout", f"{self._dir}/stderr")
        try:
            _write_new(f"{self._dir}/command", first + command + b"\n")
        except OSError:
            for fd in outputs:
                os.close(fd)
            raise
        self._say(_COMMAND.format(d=self._dir, nonce=self._nonce.decode()).encode())
        return outputs

    def status(self) -> int | None:
        """The exit status of the running command, or `None` while it is not there."""
        space = socket.CMSG_SPACE(_CREDENTIALS.size)
        try:
            data, control, _, _ = self._status.recvmsg(_STATUS_BYTES, space, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        if not data:
            raise EOFError
        nonce, code, proof = (*data.removesuffix(b"\n").split(b" "), b"", b"")[:3]
        if nonce != self._nonce or not code.isdigit() or len(code) > _MOST_DIGITS:
            return None
        if _sender(control) != self.pid:
            return None
        self._last = int(code) & 0xFF
        # An error of syntax ends a command before it begins.
        if proof != self._proof and self._last == 0:
            self._last = _NOT_RUN
        return self._last

    def interrupt(self) -> None:
        send(self.pid, signal.SIGPWR)

    def kill(self) -> None:
        """End the shell; it is reaped elsewhere."""
        send(self.pid, signal.SIGKILL)

    def close(self) -> None:
        os.close(self.input_fd)
        self._status.close()

    def _say(self, text: bytes) -> None:
        try:
            os.write(self.input_fd, text)
        except BrokenPipeError:
            pass  # the shell just died; its exit ends the command
        except BlockingIOError:
            self.kill()  # the agent has filled it: nothing of ours would arrive


def _sender(control: list[tuple[int, int, bytes]]) -> int:
    for level, kind, data in control:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            return _CREDENTIALS.unpack(data[: _CREDENTIALS.size])[0]
    return 0


def _fifos(*paths: str) -> tuple[int, int]:
    out = _fifo(paths[0])
    try:
        return out, _fifo(paths[1])
    except OSError:
        os.close(out)
        raise


def _fifo(path: str) -> int:
    # A new one per command: a job in the background keeps the old one and never mixes into this output.
    _forget(path)
    os.mkfifo(path)
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    # Where the agent is the same user it may have put something else there meanwhile.
    if stat.S_ISFIFO(os.fstat(fd).st_mode):
        os.fchmod(fd, 0o622)
        return fd
    os.close(fd)
    raise OSError(errno.EIO, os.strerror(errno.EIO), path)


def _write_new(path: str, data: bytes) -> None:
    # A new file: where the agent is the same user it may have put a link or a FIFO there.
    _forget(path)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        write_all(fd, data)
    finally:
        os.close(fd)


def _forget(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
