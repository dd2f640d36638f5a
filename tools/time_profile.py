"""Where the time of one rollout goes, by what was called; nothing is measured by default.

At each moment the time is that of the innermost call that runs: a hook that asks the judge does not count the
judge's seconds as its own. Innermost calls that run side by side share it equally, so that the own times of
all calls, and the rest between them, sum to the wall clock.
"""

import threading
from collections.abc import Coroutine, Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import Context, ContextVar
from dataclasses import dataclass
from time import monotonic
from typing import Any, TypeVar

from tools.plain_text import printable

T = TypeVar("T")

MAX_NAMES = 64
"""Names of one rollout; calls of later ones count as `OTHER`."""
OTHER = "other calls"
_NAME_CHARS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTimes:
    count: int
    total_s: float
    """From begin to end, with what they called; calls side by side count each."""
    own_s: float
    """Their part of the wall clock, without what they called."""
    max_s: float
    """The longest, from begin to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeProfile:
    wall_s: float
    """From when it had its slot to when its sandbox was closed."""
    calls: Mapping[str, CallTimes]
    """By name: `model`, `tool terminal`, `score_turn`, `judge`, `condenser fit_context`, …"""


class Profiler:
    """Measures one rollout; only on the thread of its event loop."""

    def __init__(self) -> None:
        """The clock starts here."""
        self._started = self._last = monotonic()
        self._thread = threading.get_ident()
        self._innermost = 1
        self._share = 0.0
        """Seconds that a call has got which was innermost all the time."""
        self._sums: dict[str, _Sums] = {}

    def profile(self) -> TimeProfile:
        """Where the time went that passed so far; of calls that go on, nothing."""
        return TimeProfile(
            wall_s=round(monotonic() - self._started, 6),
            calls={
                name: CallTimes(
                    count=sums.count,
                    total_s=round(sums.total_s, 6),
                    own_s=round(sums.own_s, 6),
                    max_s=round(sums.max_s, 6),
                )
                for name, sums in self._sums.items()
            },
        )

    def is_here(self) -> bool:
        return threading.get_ident() == self._thread

    def begin(self, name: str, outer: "_Call") -> "_Call":
        """A call within another, or within what that was in, if that is over."""
        self._pass()
        while outer.is_over and outer.outer is not None:
            outer = outer.outer
        if outer.inner == 0:
            outer.own_s += self._share - outer.since
            self._innermost -= 1
        outer.inner += 1
        self._innermost += 1
        return _Call(self, name, outer)

    def end(self, call: "_Call") -> None:
        """The call is over; what it began and left running goes on by itself."""
        self._pass()
        call.is_over = True
        if call.inner == 0:
            call.own_s += self._share - call.since
            self._innermost -= 1
        outer = call.outer
        if outer is not None and not outer.is_over:
            outer.inner -= 1
            if outer.inner == 0:
                outer.since = self._share
                self._innermost += 1
        self._of(call.name).add(call, self._last - call.started)

    @property
    def now(self) -> tuple[float, float]:
        return self._last, self._share

    def _pass(self) -> None:
        now = monotonic()
        self._share += (now - self._last) / self._innermost
        self._last = now

    def _of(self, name: str) -> "_Sums":
        sums = self._sums.get(name)
        if sums is None:
            name = printable(name[:_NAME_CHARS])
            name = name if name in self._sums or len(self._sums) < MAX_NAMES else OTHER
            sums = self._sums.setdefault(name, _Sums())
        return sums


class _Call:
    __slots__ = ("inner", "is_over", "name", "outer", "own_s", "profiler", "since", "started")

    def __init__(self, profiler: Profiler, name: str, outer: "_Call | None") -> None:
        self.profiler, self.name, self.outer = profiler, name, outer
        self.started, self.since = profiler.now
        self.own_s, self.inner, self.is_over = 0.0, 0, False


class _Sums:
    __slots__ = ("count", "max_s", "own_s", "total_s")

    def __init__(self) -> None:
        self.count, self.total_s, self.own_s, self.max_s = 0, 0.0, 0.0, 0.0

    def add(self, call: _Call, seconds: float) -> None:
        self.count += 1
        self.total_s += seconds
        self.own_s += call.own_s
        self.max_s = max(self.max_s, seconds)


_RUNNING: ContextVar[_Call | None] = ContextVar("turnwise_profiled_call", default=None)
_UNMEASURED = nullcontext()


def timed(name: str) -> AbstractContextManager[object]:
    """Measures what is done in it, where the rollout that it is done for has a profile."""
    outer = _RUNNING.get()
    return _UNMEASURED if outer is None or not outer.profiler.is_here() else _Timed(name, outer)


class _Timed:
    __slots__ = ("_call", "_name", "_outer")

    def __init__(self, name: str, outer: _Call) -> None:
        self._name, self._outer = name, outer

    def __enter__(self) -> None:
        self._call = self._outer.profiler.begin(self._name, self._outer)
        _RUNNING.set(self._call)

    def __exit__(self, *_: object) -> None:
        self._outer.profiler.end(self._call)
        # Not by a token: an unfinished coroutine is closed in another context.
        _RUNNING.set(self._outer)


class profiled:  # noqa: N801  # a context manager, like `timed`
    """What is done in it is measured by a profiler, if there is one."""

    def __init__(self, profiler: Profiler | None) -> None:
        self._profiler = profiler

    def __enter__(self) -> None:
        if self._profiler is not None:
            self._before = _RUNNING.get()
            # Held by the context alone: a profiler that held it, too, would be freed late.
            _RUNNING.set(_Call(self._profiler, "", None))

    def __exit__(self, *_: object) -> None:
        if self._profiler is not None:
            _RUNNING.set(self._before)


def handed_to(context: Context) -> Context:
    """A fresh context in which the running call goes on."""
    if (running := _RUNNING.get()) is not None:
        context.run(_RUNNING.set, running)
    return context


def handed_on(work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
    """The coroutine, in the call that runs here, whatever context it will be awaited in."""
    running = _RUNNING.get()
    return work if running is None else _within(running, work)


async def _within(running: _Call, work: Coroutine[Any, Any, T]) -> T:
    before = _RUNNING.get()
    _RUNNING.set(running)
    try:
        return await work
    finally:
        _RUNNING.set(before)
