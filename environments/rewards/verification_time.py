"""The time of verifications: it has a limit of its own, and is not that of the hook that waits for one."""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from time import monotonic


class HookClock:
    """The time of one call of an environment's code, without that of its verifications."""

    def __init__(self) -> None:
        """It starts now, in a call that another one waits for where there is one."""
        self._outer = CLOCK.get()
        self._spent_s, self._since = 0.0, monotonic()
        self._stops = 0

    @property
    def is_stopped(self) -> bool:
        return self._stops > 0

    def spent_s(self) -> float:
        return self._spent_s if self._stops else self._spent_s + monotonic() - self._since

    @contextmanager
    def stopped(self) -> Generator[None]:
        """For a verification, or for the wait for one; several may run side by side."""
        self._spent_s = self.spent_s()
        self._stops += 1
        try:
            if self._outer is None:
                yield
            else:
                with self._outer.stopped():
                    yield
        finally:
            self._stops -= 1
            self._since = monotonic()


CLOCK: ContextVar[HookClock | None] = ContextVar("turnwise_hook_clock", default=None)
"""That of the call which runs."""


@contextmanager
def off_the_clock() -> Generator[None]:
    clock = CLOCK.get()
    if clock is None:
        yield
    else:
        with clock.stopped():
            yield


@dataclass(slots=True)
class _Whole:
    deadline: float | None = None


_WHOLE: ContextVar[_Whole | None] = ContextVar("turnwise_whole_verification", default=None)


@contextmanager
def one_verification() -> Generator[None]:
    """The calls of `ctx.verify` in here have one limit together."""
    token = _WHOLE.set(_WHOLE.get() or _Whole())
    try:
        yield
    finally:
        _WHOLE.reset(token)


def seconds_left(limit_s: float) -> float:
    """Of the limit of a verification that begins now, or began with the first one in `one_verification`."""
    whole = _WHOLE.get()
    if whole is None:
        return limit_s
    if whole.deadline is None:
        whole.deadline = monotonic() + limit_s
    return max(0.0, whole.deadline - monotonic())
