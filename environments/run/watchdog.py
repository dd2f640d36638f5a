"""A thread that detects code which blocks the event loop: it names the place and ends the run.

Native code that holds the interpreter stops this thread too. faulthandler could end such a process, but its
clock includes time in which the process was suspended, so that SIGCONT would end a healthy run.
"""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, process_time, sleep, thread_time
from types import FrameType
from typing import Self

from environments.base_env import AgentEnv
from environments.rollout.containment.hook_calls import InFlight, rollout_at
from environments.run.console_streams import drop_unread_output
from environments.run.progress import Progress
from environments.trajectory import Failure
from tools.extras import LIBRARIES, OWN_FOLDERS

NAMED_AFTER_S = 5.0
BLOCKED = 1
_TICK_S = 0.5
_REPORT_S = 3.0
_YIELD_CPU_S = 2.0


class Watchdog:
    """Watches the running event loop; a blocked loop ends the run only while `arm` is entered.

    Only time in the environment's own code counts, not suspension of the machine or process nor our own work.
    """

    def __init__(
        self,
        env_cls: type,
        say: Callable[[str], None],
        *,
        ends_after_s: float,
        on_tick: Callable[[str | None], None] = lambda _: None,
        what: str = "run",
    ) -> None:
        """Prepare a watchdog.

        `on_tick` is called twice a second, with the place that blocks the loop or None. `what` is the word
        for what ends, such as `run`.
        """
        self._what = what
        self._env_cls, self._say, self._ends_after_s, self._on_tick = env_cls, say, ends_after_s, on_tick
        self.on_end: Callable[[InFlight, Failure], object] | None = None
        """Receives the rollout that blocks the loop, and its failure, before the process exits."""
        self._is_armed = self._is_ending = False
        self._able_s = self._busy_s = 0.0
        self._has_turned, self._end = threading.Event(), threading.Event()
        self._named = set[str]()

    @contextmanager
    def arm(self) -> Generator[None]:
        began, busy, queued = monotonic(), thread_time(), _queued_s()
        self._is_armed = True
        try:
            yield
        finally:
            self._is_armed = False
            self._able_s += monotonic() - began - (_queued_s() - queued)
            self._busy_s += thread_time() - busy

    @property
    def utilisation(self) -> float | None:
        """CPU time of the loop's thread over the time in which a processor was free for it."""
        return min(1.0, self._busy_s / self._able_s) if self._able_s > 0 else None

    @contextmanager
    def watch(self) -> Generator[Self]:
        before = signal.getsignal(signal.SIGPROF)
        # Leave the signal to a profiler.
        self._yields = threading.current_thread() is threading.main_thread() and before == signal.SIG_DFL
        if self._yields:
            signal.signal(signal.SIGPROF, self.hand_over)
            signal.siginterrupt(signal.SIGPROF, False)
        self._turn()
        watched = asyncio.get_running_loop(), threading.get_ident()
        threading.Thread(target=self._run, args=watched, name="turnwise-watchdog", daemon=True).start()
        try:
            yield self
        finally:
            self._end.set()
            if self._yields:
                signal.setitimer(signal.ITIMER_PROF, 0)
                signal.signal(signal.SIGPROF, before)
            self._yields = False

    def _turn(self) -> None:
        if self._yields:
            # A regular expression may hold the interpreter for hours but handles signals meanwhile.
            signal.setitimer(signal.ITIMER_PROF, _YIELD_CPU_S, _TICK_S)
        self._has_turned.set()

    def hand_over(self, number: int, frame: object) -> None:
        """Signal handler that runs between steps of a call in C; sleeping releases the interpreter."""
        sleep(_REPORT_S if self._is_ending else 0)

    def _run(self, loop: asyncio.AbstractEventLoop, watched: int) -> None:
        before, cpu_before, blocked_s = monotonic(), process_time(), 0.0
        while not self._end.wait(_TICK_S):
            now, cpu = monotonic(), process_time()
            # CPU time tells a suspended process (none) from one that holds the interpreter (all).
            passed_s = min(now - before, max(2 * _TICK_S, cpu - cpu_before))
            before, cpu_before, where = now, cpu, None
            if self._has_turned.is_set():
                self._has_turned.clear()
                blocked_s = 0.0
                try:
                    loop.call_soon_threadsafe(self._turn)
                except RuntimeError:
                    return  # the loop is closed
            else:
                frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]  # there is no other way
                where = find_place(frames.get(watched), self._env_cls)
            self._on_tick(where)
            if where is not None and self._is_armed:
                blocked_s += passed_s
                self._handle_block(loop, where, blocked_s)

    def _handle_block(self, loop: asyncio.AbstractEventLoop, where: str, blocked_s: float) -> None:
        limit = f"{self._ends_after_s:g} s"
        if blocked_s >= NAMED_AFTER_S - _TICK_S and where not in self._named:
            self._named.add(where)
            self._say(
                f"{where} blocks the event loop, and every rollout with it; await what takes long, or write "
                f"it as a `def`, which runs on a thread (the {self._what} ends after {limit} of it)"
            )
        if blocked_s >= self._ends_after_s:
            text = (
                f"stopped: {where} has blocked the event loop for {limit} (--env.hook_block_s); "
                "finished groups are kept, and the same command goes on from them"
            )
            self._is_ending = True
            # In a thread: a hanging console must not keep the process alive.
            report = threading.Thread(target=self._report_end, args=(text, loop, where), daemon=True)
            report.start()
            report.join(_REPORT_S)
            # The blocked thread cannot end in order. Sandboxes end with the process.
            os._exit(BLOCKED)

    def _report_end(self, text: str, loop: asyncio.AbstractEventLoop, where: str) -> None:
        self._say(text)
        sys.stdout.flush()
        sys.stderr.flush()
        rollout = rollout_at(loop)
        if self.on_end is not None and rollout is not None and rollout.item_id:
            name = "BlockedLoop"
            failure = Failure(
                sibling=rollout.sibling,
                stop_reason=None,
                error=f"{name}: it blocked the event loop for {self._ends_after_s:g} s ({where})",
                error_class=name,
                where=where,
                traceback="",
                turns=0,
            )
            self.on_end(rollout, failure)


@contextmanager
def watch_run(env: AgentEnv, progress: Progress) -> Generator[Watchdog]:
    limit_s = env.config.hook_block_s
    watchdog = Watchdog(type(env), progress.say, ends_after_s=limit_s, on_tick=progress.heartbeat)
    drop_unread_output()
    with progress.observers.wait_at_end(), watchdog.watch():
        yield watchdog


def _queued_s() -> float:
    """Time in which this thread could have run and no processor was free; 0 where the kernel does not say."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def find_place(frame: FrameType | None, env_cls: type) -> str | None:
    """Return the hook or tool of a frame and the current line below it; `None` for our own code.

    Example: `env.py:12 in compute_reward, at env.py:30 in helper`.
    """
    file = getattr(sys.modules.get(env_cls.__module__), "__file__", None) or ""
    # A shipped environment lies in our own folders, an installed one among packages.
    home = f"{Path(file).parent}/" if file.startswith((*OWN_FOLDERS, *LIBRARIES)) else None
    called: list[FrameType] = []
    while frame is not None:
        name = frame.f_code.co_filename
        is_own = home is not None and name.startswith(home)
        is_interruption = frame.f_code is Watchdog.hand_over.__code__
        if not is_own and not is_interruption and name.startswith(OWN_FOLDERS):
            break
        if is_own or not (is_interruption or name.startswith(LIBRARIES)):
            called.append(frame)
        frame = frame.f_back
    places = [
        f"{Path(each.f_code.co_filename).name}:{each.f_lineno} in {each.f_code.co_name}"
        for each in dict.fromkeys([*called[-1:], *called[:1]])
    ]
    return ", at ".join(places) or None
