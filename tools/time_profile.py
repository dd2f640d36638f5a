"""A profile of one rollout's wall clock by calls; off by default.

Time belongs to the innermost running call: a hook that asks the judge does not own the judge's seconds.
Concurrent innermost calls share time equally, so own times and the remainder sum to the wall clock.
"""

import threading
from collections.abc import Coroutine, Generator, Mapping
from contextlib import contextmanager
from contextvars import Context, ContextVar
from dataclasses import dataclass
from time import monotonic
from typing import Any, TypeVar

from tools.plain_text import printable

T = TypeVar("T")

MAX_NAMES = 64
"""Limit per rollout; further names count as `OTHER`."""
OTHER = "other calls"
_NAME_CHARS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTimes:
    count: int
    total_s: float
    """From begin to end, inner calls included; concurrent calls each count in full."""
    own_s: float
    """Share of the wall clock without inner calls."""
    max_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeProfile:
    wall_s: float
    """From the rollout's slot to its sandbox's end."""
    calls: Mapping[str, CallTimes]
    """Times by name: `model`, `tool terminal`, `score_turn`, `judge`, `condenser fit_context`, …"""


class Profiler:
    """Measures one rollout on the thread of its event loop."""

    def __init__(self) -> None:
        self._started = self._last = monotonic()
        self._share = 0.0
        self._innermost = 1
        self._times: dict[str, CallTimes] = {}
        self.thread = threading.get_ident()

    def profile(self) -> TimeProfile:
        calls = {
            name: CallTimes(
                count=times.count,
                **{key: round(getattr(times, key), 6) for key in ("total_s", "own_s", "max_s")},
            )
            for name, times in self._times.items()
        }
        return TimeProfile(wall_s=round(monotonic() - self._started, 6), calls=calls)

    def begin(self, outer: "_Call") -> "_Call":
        """Begin a call within the nearest unfinished outer call."""
        self._pass()
        while outer.is_over and outer.outer is not None:
            outer = outer.outer
        if outer.inner == 0:
            outer.own_s += self._share - outer.since
            self._innermost -= 1
        outer.inner += 1
        self._innermost += 1
        return _Call(self, outer)

    def end(self, call: "_Call", name: str) -> None:
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
        name = printable(name[:_NAME_CHARS])
        if name not in self._times and len(self._times) >= MAX_NAMES:
            name = OTHER
        times = self._times.get(name, CallTimes(count=0, total_s=0.0, own_s=0.0, max_s=0.0))
        total_s = self._last - call.started
        self._times[name] = CallTimes(
            count=times.count + 1,
            total_s=times.total_s + total_s,
            own_s=times.own_s + call.own_s,
            max_s=max(times.max_s, total_s),
        )

    @property
    def now(self) -> tuple[float, float]:
        return self._last, self._share

    def _pass(self) -> None:
        now = monotonic()
        self._share += (now - self._last) / self._innermost
        self._last = now


class _Call:
    __slots__ = ("inner", "is_over", "outer", "own_s", "profiler", "since", "started")

    def __init__(self, profiler: Profiler, outer: "_Call | None") -> None:
        self.profiler, self.outer = profiler, outer
        self.started, self.since = profiler.now
        self.own_s, self.inner, self.is_over = 0.0, 0, False


_RUNNING: ContextVar[_Call | None] = ContextVar("turnwise_profiled_call", default=None)


@contextmanager
def measure(name: str) -> Generator[None]:
    outer = _RUNNING.get()
    if outer is None or outer.profiler.thread != threading.get_ident():
        yield
        return
    call = outer.profiler.begin(outer)
    _RUNNING.set(call)
    try:
        yield
    finally:
        outer.profiler.end(call, name)
        # Not by a token: an unfinished coroutine is closed in another context.
        _RUNNING.set(outer)


@contextmanager
def profiled(profiler: Profiler | None) -> Generator[None]:
    if profiler is None:
        yield
        return
    before = _RUNNING.get()
    # Only the context holds the call; a cycle with the profiler would delay its release.
    _RUNNING.set(_Call(profiler, None))
    try:
        yield
    finally:
        _RUNNING.set(before)


def copy_profile(context: Context) -> Context:
    if (running := _RUNNING.get()) is not None:
        context.run(_RUNNING.set, running)
    return context


def inherit_profile(work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
    running = _RUNNING.get()
    return work if running is None else _run_within(running, work)


async def _run_within(running: _Call, work: Coroutine[Any, Any, T]) -> T:
    before = _RUNNING.get()
    _RUNNING.set(running)
    try:
        return await work
    finally:
        _RUNNING.set(before)
