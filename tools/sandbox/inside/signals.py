"""Signals without the `signal` module, whose enums would cost every session 5 ms."""

from __future__ import annotations

import _signal  # pyright: ignore[reportMissingImports]  # the C half of `signal`; it has no stub

SIGINT, SIGKILL, SIGPIPE, SIGCHLD, SIGCONT, SIGSTOP, SIGXFSZ, SIGPWR = 2, 9, 13, 17, 18, 19, 25, 30
"""The numbers of x86 and ARM."""


def wake_on_child(writer: int) -> None:
    """Write a byte to this non-blocking descriptor whenever a child ends."""
    _signal.signal(SIGCHLD, _ignore)  # pyright: ignore[reportUnknownMemberType]  # no stub
    _signal.set_wakeup_fd(writer, warn_on_full_buffer=False)  # pyright: ignore[reportUnknownMemberType]  # no stub


def as_at_birth() -> None:
    """Undo what Python did to signals that a program would inherit."""
    for number in (SIGPIPE, SIGXFSZ):
        _signal.signal(number, _signal.SIG_DFL)  # pyright: ignore[reportUnknownMemberType]  # no stub
    _signal.set_wakeup_fd(-1)  # pyright: ignore[reportUnknownMemberType]  # no stub


def ordinary_interrupts() -> None:
    """Let SIGINT be what it is to any program: nothing to process 1, an end by a signal to another."""
    _signal.signal(SIGINT, _signal.SIG_DFL)  # pyright: ignore[reportUnknownMemberType]  # no stub


def forget_children() -> None:
    """Let the kernel reap children that end."""
    _signal.signal(SIGCHLD, _signal.SIG_IGN)  # pyright: ignore[reportUnknownMemberType]  # no stub


def wait_for_children() -> None:
    """Undo `forget_children`: their ends can be waited for."""
    _signal.signal(SIGCHLD, _signal.SIG_DFL)  # pyright: ignore[reportUnknownMemberType]  # no stub


def _ignore(_number: int, _frame: object) -> None:
    """A handler of Python's is needed for the byte to be written."""
