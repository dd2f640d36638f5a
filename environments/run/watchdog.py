"""A thread that notices code which blocks the event loop: it names the place, and ends the run."""

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from time import monotonic, process_time
from types import TracebackType
from typing import Self

from environments.base_env import AgentEnv
from environments.run.blocking_code import CodePlaces
from environments.run.interpreter_yields import InterpreterYields
from environments.run.progress import Progress

NAMED_AFTER_S = 5.0
BLOCKED = 1
"""Exit code of a run whose event loop was blocked for too long."""
_TICK_S = 0.5
_LAST_WORDS_S = 2.0


class Watchdog:
    """While entered, watches the event loop that runs; blocking it has consequences while `armed`.

    Only time in which this process ran counts, and only that in the environment's own code: a machine that
    slept, a process that was stopped and work of ours are nobody's fault.
    """

    def __init__(
        self,
        places: CodePlaces,
        say: Callable[[str], None],
        *,
        ends_after_s: float,
        on_tick: Callable[[str | None], None] = lambda _: None,
    ) -> None:
        """Prepare.

        Args:
            places: knows the environment's code.
            say: shows a line to the user.
            ends_after_s: how long code may block the loop before the process ends with `BLOCKED`.
            on_tick: called twice a second, with the place that the loop is blocked at, if it is at one.
        """
        self._places = places
        self._say = say
        self._ends_after_s = ends_after_s
        self._on_tick = on_tick
        self._is_armed = False
        self._has_turned = threading.Event()
        self._end = threading.Event()
        self._blocked_s = 0.0
        self._named = set[str]()
        """Places; code that blocks once in a while is named once."""
        self._thread = threading.Thread(target=self._run, name="turnwise-watchdog", daemon=True)

    @contextmanager
    def armed(self) -> Generator[None]:
        """While rollouts go on; what opens and closes an environment may take its time."""
        self._is_armed = True
        try:
            yield
        finally:
            self._is_armed = False

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._watched = threading.get_ident()
        self._yields = InterpreterYields()
        self._turn()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._yields.close()

    def _turn(self) -> None:
        """Run in the event loop."""
        self._yields.postpone()
        self._has_turned.set()

    def _run(self) -> None:
        before, cpu_before = monotonic(), process_time()
        while not self._end.wait(_TICK_S):
            now, cpu = monotonic(), process_time()
            # A process that was stopped used no processor; one that holds the interpreter uses nothing else.
            self._tick(min(now - before, max(2 * _TICK_S, cpu - cpu_before)))
            before, cpu_before = now, cpu

    def _tick(self, passed_s: float) -> None:
        if self._has_turned.is_set():
            self._has_turned.clear()
            self._blocked_s = 0.0
            try:
                self._loop.call_soon_threadsafe(self._turn)
            except RuntimeError:
                return  # the loop is closed
            self._on_tick(None)
            return
        where = self._places.of_thread(self._watched)
        self._on_tick(where)
        if where is None or not self._is_armed:
            return
        self._blocked_s += passed_s
        if self._blocked_s >= NAMED_AFTER_S - _TICK_S and where not in self._named:
            self._named.add(where)
            self._say(
                f"{where} blocks the event loop, and every rollout with it; await what takes long, or write "
                f"it as a `def`, which runs on a thread (the run ends after {self._ends_after_s:g} s of it)"
            )
        if self._blocked_s >= self._ends_after_s:
            self._end_process(where)

    def _end_process(self, where: str) -> None:
        # Nothing that shows this may keep the process from its end.
        last_words = threading.Thread(target=self._show_end, args=(where,), daemon=True)
        last_words.start()
        last_words.join(_LAST_WORDS_S)
        # The thread that would end in order is the one that is blocked. Sandboxes go with their process.
        os._exit(BLOCKED)

    def _show_end(self, where: str) -> None:
        self._say(
            f"stopped: {where} has blocked the event loop for {self._ends_after_s:g} s (--env.hook_block_s); "
            "finished groups are kept, and the same command goes on from them"
        )
        for stream in (sys.stdout, sys.stderr):
            stream.flush()


def watchdog_of(env: AgentEnv, progress: Progress) -> Watchdog:
    """The watchdog of a run."""
    return Watchdog(
        CodePlaces(type(env)),
        progress.say,
        ends_after_s=env.config.hook_block_s,
        on_tick=progress.heartbeat,
    )
