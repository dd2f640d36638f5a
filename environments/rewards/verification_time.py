"""The time of verifications, which has a limit and does not count for the hook that waits."""

from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from time import monotonic


class HookClock:
    def __init__(self) -> None:
        self._outer = CLOCK.get()
        self._spent_s, self._since = 0.0, monotonic()
        self._stops = 0

    @property
    def is_stopped(self) -> bool:
        return self._stops > 0

    def spent_s(self) -> float:
        return self._spent_s if self._stops else self._spent_s + monotonic() - self._since

    @contextmanager
    def stop(self) -> Generator[None]:
        """Stop this clock and those of the calls that wait for this one; several stops may overlap."""
        self._spent_s = self.spent_s()
        self._stops += 1
        try:
            with nullcontext() if self._outer is None else self._outer.stop():
                yield
        finally:
            self._stops -= 1
            self._since = monotonic()


CLOCK: ContextVar[HookClock | None] = ContextVar("turnwise_hook_clock", default=None)


@contextmanager
def off_the_clock() -> Generator[None]:
    clock = CLOCK.get()
    with nullcontext() if clock is None else clock.stop():
        yield


_DEADLINE: ContextVar[list[float] | None] = ContextVar("turnwise_whole_verification", default=None)
"""The deadline that nested verifications share, once the first one has begun."""


@contextmanager
def one_verification() -> Generator[None]:
    shared = _DEADLINE.get()
    token = _DEADLINE.set([] if shared is None else shared)
    try:
        yield
    finally:
        _DEADLINE.reset(token)


def seconds_left(limit_s: float) -> float:
    shared = _DEADLINE.get()
    if shared is None:
        return limit_s
    if not shared:
        shared.append(monotonic() + limit_s)
    return max(0.0, shared[0] - monotonic())
