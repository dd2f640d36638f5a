"""SIGTERM to a command that writes a file ends it as ^C does: nothing half-written stays."""

import signal
from collections.abc import Generator
from contextlib import contextmanager
from threading import current_thread, main_thread

import click


@contextmanager
def terminated_as_interrupted() -> Generator[None]:
    """While entered, the first SIGTERM interrupts; the second ends the process at once.

    Raises:
        Exit: it was received; the exit code is that of a shell, 143.
    """
    if current_thread() is not main_thread():  # no other one may handle signals
        yield
        return
    received = False

    def receive(*_: object) -> None:
        nonlocal received
        received = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, receive)
    try:
        yield
    except KeyboardInterrupt:
        if received:
            raise click.exceptions.Exit(128 + signal.SIGTERM) from None
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
