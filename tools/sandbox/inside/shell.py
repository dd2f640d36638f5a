"""The persistent bash, which sources each command and reports its status on a socket.

The agent controls it and can forge its own status, so verdicts never rely on it. But no other process can
report a status, and a shell that ended never reports success.
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

# Sourcing keeps directory, variables and functions. The status descriptor is closed in the command. A trap's
# `return` leaves one function or sourced file, so the debug trap refuses every command until all are left:
# nothing after a killed command runs.
_PROLOGUE = r"""shopt -s expand_aliases
__turnwise_again() { __turnwise_ran=$2; return "$1"; }
__turnwise_leave() {
  if ((${#FUNCNAME[@]} > 1)); then return 2; fi
  trap - DEBUG; set +T; shopt -u extdebug
}
trap 'shopt -s extdebug; set -T; trap __turnwise_leave DEBUG; return 137' PWR
"""
# The status line is not a function, which the trap could leave too early. It is a separate line, because
# certain errors make bash drop the rest of a line.
_COMMAND = """\\source {d}/command </dev/null >{d}/stdout 2>{d}/stderr 9>&-
\\builtin echo {nonce} $? "$__turnwise_ran" >&9
"""
# Proves that the file was read, which a function called `source` would not do. It shares the first line of
# the command, so that line numbers in errors stay right.
_FIRST = "{{ __turnwise_again {code} {proof}; }} 2>/dev/null; "
_NOT_RUN = 126
GONE = 129
"""128 + SIGHUP: the shell exited with 0 before it reported a status."""
_MOST_DIGITS = 3
_STATUS_BYTES = 64
_CREDENTIALS = struct.Struct("3i")
"""Process id, user and group of the sender, set by the kernel."""


class Shell:
    """A running bash; it runs one command at a time."""

    def __init__(self, account: Account, run_dir: str) -> None:
        self._dir = run_dir
        self._nonce = self._proof = b""
        self._last = 0
        """The next command's `$?`."""
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
        """Start a command; return the read ends of its stdout and stderr."""
        # During redirections bash keeps the status descriptor under another number: the nonce must not be
        # guessed.
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
        """Return the running command's status, or None."""
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
        # A syntax error ends a command before it begins.
        if proof != self._proof and self._last == 0:
            self._last = _NOT_RUN
        return self._last

    def interrupt(self) -> None:
        send(self.pid, signal.SIGPWR)

    def kill(self) -> None:
        send(self.pid, signal.SIGKILL)

    def close(self) -> None:
        os.close(self.input_fd)
        self._status.close()

    def _say(self, text: bytes) -> None:
        try:
            os.write(self.input_fd, text)
        except BrokenPipeError:
            pass  # its exit ends the command
        except BlockingIOError:
            self.kill()  # the agent filled it: commands would not arrive


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
    # A new FIFO for each command; background jobs keep the old one.
    _forget(path)
    os.mkfifo(path)
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    # An agent of the same user may replace it.
    if stat.S_ISFIFO(os.fstat(fd).st_mode):
        os.fchmod(fd, 0o622)
        return fd
    os.close(fd)
    raise OSError(errno.EIO, os.strerror(errno.EIO), path)


def _write_new(path: str, data: bytes) -> None:
    # An agent of the same user may have put a link or FIFO there.
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
