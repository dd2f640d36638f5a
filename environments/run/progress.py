"""What a run shows while it goes: one live line on a terminal, a plain line now and then elsewhere."""

from collections.abc import Callable
from time import monotonic
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from environments.record.summary import EVALUATED, Summary, duration
from environments.run.rollouts_in_flight import RolloutsInFlight
from environments.run.run_log import RunLog
from environments.trajectory import CreditedGroup, TrajectoryGroup

PLAIN_EVERY_S = 5.0
HEARTBEAT_S = 30.0
"""After so long without a line there is one that tells what is waited for."""


class Progress:
    """Counts the events of a run and shows them; the counts end up in `summary`."""

    def __init__(
        self,
        console: Console,
        *,
        total: int | None = None,
        done_before: int = 0,
        plain_every_s: float = PLAIN_EVERY_S,
        log: RunLog | None = None,
    ) -> None:
        """Start the clock.

        Args:
            console: where to show; a console that is no terminal gets plain lines.
            total: groups of the whole job; `None` while unknown.
            done_before: groups that an earlier run of the same job finished.
            plain_every_s: least time between two plain lines.
            log: takes every line, too.
        """
        self.summary = Summary()
        self.in_flight = RolloutsInFlight()
        self.rollout = self.in_flight.watch
        self._console = console
        self._log = log
        self._last_line = monotonic()
        self._is_ready = False
        self._plain_every_s = plain_every_s
        self.start(total=total, done_before=done_before)
        self._live = Live(get_renderable=self._line, console=console, transient=True, refresh_per_second=4)

    def start(self, *, total: int | None, done_before: int) -> None:
        """Start the clock anew, now that the work is known."""
        self._total = total
        self._done_before = done_before
        self._started = monotonic()
        self._last_plain = self._started

    def ready(self) -> None:
        """The environment is open: silence is no sign of a long setup any more."""
        self._is_ready = True

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    @property
    def elapsed_s(self) -> float:
        """Wall clock since the start."""
        return monotonic() - self._started

    def group_done(self, credited: CreditedGroup) -> None:
        """A group that is on disk."""
        self.summary.add(credited)
        self._print_plain()

    def rolled_out(self, group: TrajectoryGroup) -> None:
        """A group of an evaluation."""
        self.summary.add_rollouts(group, EVALUATED)
        self._print_plain()

    def say(self, line: str) -> None:
        """Show a line."""
        self._last_line = monotonic()
        self._console.print(line, soft_wrap=True, markup=False, highlight=False)
        if self._log is not None:
            self._log.add(line)

    def print(self, show: Callable[[Console], None]) -> None:
        """Have a function print."""
        show(self._console)
        if self._log is not None:
            self._log.add_printed(show)

    def heartbeat(self, where: str | None) -> None:
        """Show what is waited for if nothing was shown for a while; any thread may call it.

        Args:
            where: the place in the environment's code that the event loop is at, if it is at one.
        """
        if self._live.is_started or monotonic() - self._last_line < HEARTBEAT_S:
            return
        if oldest := self.in_flight.oldest():
            self.say(f"{self.line()} · oldest: {oldest}")
        elif not self._is_ready:
            at = "" if where is None else f", at {where}"
            self.say(f"not ready after {duration(self.elapsed_s)}: setup, items, sandboxes and the model{at}")

    def _print_plain(self) -> None:
        now = monotonic()
        if not self._console.is_terminal and now - self._last_plain >= self._plain_every_s:
            self._last_plain = now
            self.say(self.line())

    def line(self) -> str:
        """Groups done, rollouts in flight, mean scores, failures, rate and time left, in one line."""
        done = self._done_before + self.summary.done
        elapsed = self.elapsed_s
        rate = self.summary.done / elapsed if elapsed > 0 else 0.0
        mean = self.summary.score.mean
        parts = [
            f"groups {done}" + (f"/{self._total}" if self._total is not None else ""),
            f"{len(self.in_flight)} in flight",
            "mean score -" if mean is None else f"mean score {mean:.3f}",
            *filter(None, [self.summary.measured.headline()]),
            f"{self.summary.failures.total()} dropped",
            f"{rate * 60:.1f}/min",
        ]
        if len(self.summary.images) > 1:
            parts.append(f"{len(self.summary.images)} images")
        if forks := self.summary.forks.short():
            parts.append(forks)
        if self._total is not None and rate > 0:
            parts.append(f"ETA {duration(max(0, self._total - done) / rate)}")
        return " · ".join(parts)

    def _line(self) -> Text:
        oldest = self.in_flight.oldest(least_s=HEARTBEAT_S)
        return Text(self.line() if oldest is None else f"{self.line()} · oldest: {oldest}")
