"""Other threads get the interpreter although a call in C holds it, while an event loop does not turn."""

import signal
import threading
from time import sleep


class InterpreterYields:
    """Lets other threads run where a call in C holds the interpreter, as a regular expression does for hours.

    A signal after so much processor time makes it run Python code in between. It fires only while the event
    loop does not turn.
    """

    _AFTER_CPU_S = 2.0
    _EVERY_CPU_S = 0.5

    def __init__(self) -> None:
        self._before = signal.getsignal(signal.SIGPROF)
        # Whoever profiles the process needs the signal more.
        self._is_ours = (
            threading.current_thread() is threading.main_thread() and self._before == signal.SIG_DFL
        )
        if self._is_ours:
            signal.signal(signal.SIGPROF, hand_over)
            signal.siginterrupt(signal.SIGPROF, False)

    def postpone(self) -> None:
        """Count anew."""
        if self._is_ours:
            signal.setitimer(signal.ITIMER_PROF, self._AFTER_CPU_S, self._EVERY_CPU_S)

    def close(self) -> None:
        """Give the signal back."""
        if self._is_ours:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, self._before)
        self._is_ours = False


def hand_over(number: int, frame: object) -> None:
    """Run between the steps of a call in C; waiting for nothing hands the interpreter to another thread."""
    sleep(0)
