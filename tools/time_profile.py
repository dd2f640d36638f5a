"""A profile of one rollout's wall clock by calls; off by default.

Time belongs to the innermost running call: a hook that asks the judge does not own the judge's seconds.
Concurrent innermost calls share time equally, so own times and the remainder sum to the wall clock.
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
        self._thread = threading.get_ident()
        self._innermost = 1
        self._share = 0.0
        self._sums: dict[str, _Sums] = {}

    def profile(self) -> TimeProfile:
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
        """Begin a call within the nearest unfinished outer call."""
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


def measure(name: str) -> AbstractContextManager[object]:
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
    def __init__(self, profiler: Profiler | None) -> None:
        self._profiler = profiler

    def __enter__(self) -> None:
        if self._profiler is not None:
            self._before = _RUNNING.get()
            # Only the context holds the call; a cycle with the profiler would delay its release.
            _RUNNING.set(_Call(self._profiler, "", None))

    def __exit__(self, *_: object) -> None:
        if self._profiler is not None:
            _RUNNING.set(self._before)


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
