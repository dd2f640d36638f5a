"""What a run shows while it goes: a live picture on a terminal, a plain line now and then elsewhere."""

from collections import deque
from collections.abc import Callable
from time import monotonic
from types import TracebackType
from typing import Self

from rich.console import Console, RenderableType

from environments.record.summary import duration, forks_in_short, headline
from environments.record.totals import EVALUATED, Summary
from environments.run.live_view import LiveView, picture
from environments.run.rollouts_in_flight import RolloutsInFlight
from environments.run.run_log import RunLog
from environments.trajectory import CreditedGroup, TrajectoryGroup

PLAIN_EVERY_S = 5.0
MAX_MARKS = 32
"""Groups that the rate of tokens is taken from."""
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
        self._live = LiveView(console, self._picture)
        self._tokens: deque[tuple[float, int]] = deque(maxlen=MAX_MARKS)
        """When so many tokens were sampled."""

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
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    @property
    def elapsed_s(self) -> float:
        """Wall clock since the start."""
        return monotonic() - self._started

    def group_done(self, credited: CreditedGroup) -> None:
        """A group that is on disk."""
        self.summary.add(credited)
        self._group_ended()

    def rolled_out(self, group: TrajectoryGroup) -> None:
        """A group of an evaluation."""
        self.summary.add_rollouts(group, EVALUATED)
        self._group_ended()

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
        if self._live.is_shown or monotonic() - self._last_line < HEARTBEAT_S:
            return
        if oldest := self.in_flight.oldest():
            self.say(f"{self.line()} · oldest: {oldest}")
        elif not self._is_ready:
            at = "" if where is None else f", at {where}"
            self.say(f"not ready after {duration(self.elapsed_s)}: setup, items, sandboxes and the model{at}")

    def _group_ended(self) -> None:
        now = monotonic()
        self._tokens.append((now, self.summary.totals["tokens"]["sampled"]))
        if not self._console.is_terminal and now - self._last_plain >= self._plain_every_s:
            self._last_plain = now
            self.say(self.line())

    def line(self) -> str:
        """Groups done, rollouts in flight, mean scores, failures, rate and time left, in one line."""
        done = self._done_before + self.summary.done
        elapsed = self.elapsed_s
        rate = self.summary.done / elapsed if elapsed > 0 else 0.0
        numbers = self.summary.values()
        mean, images = numbers["score"]["mean"], numbers["sandboxes"]["images"]
        parts = [
            f"groups {done}" + (f"/{self._total}" if self._total is not None else ""),
            f"{len(self.in_flight)} in flight",
            "mean score -" if mean is None else f"mean score {mean:.3f}",
            *filter(None, [headline(numbers)]),
            f"{numbers['rollouts']['dropped']} dropped",
            f"{rate * 60:.1f}/min",
        ]
        if images > 1:
            parts.append(f"{images} images")
        if forks := forks_in_short(numbers):
            parts.append(forks)
        if self._total is not None and rate > 0:
            parts.append(f"ETA {duration(max(0, self._total - done) / rate)}")
        return " · ".join(parts)

    def _tokens_per_s(self) -> float | None:
        """Of the last groups; `None` while there are too few."""
        if len(self._tokens) < 2:
            return None
        since, before = self._tokens[0]
        return (self._tokens[-1][1] - before) / max(1e-3, monotonic() - since)

    def _picture(self) -> RenderableType:
        done = self._done_before + self.summary.done
        return picture(
            self.line(),
            self.summary,
            self.in_flight,
            width=self._console.width,
            tokens_per_s=self._tokens_per_s(),
            share=min(1.0, done / self._total) if self._total else None,
        )
