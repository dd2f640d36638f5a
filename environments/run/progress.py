"""What a run shows while it goes: one live line on a terminal, a plain line now and then elsewhere."""

from collections.abc import Generator
from contextlib import contextmanager
from time import monotonic
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from environments.record.summary import Summary, duration
from environments.rollout.in_flight import InFlight
from environments.trajectory import CreditedGroup, TrajectoryGroup

PLAIN_EVERY_S = 5.0


class Progress:
    """Counts the events of a run and shows them; the counts end up in `summary`."""

    def __init__(
        self,
        console: Console,
        *,
        total: int | None = None,
        done_before: int = 0,
        plain_every_s: float = PLAIN_EVERY_S,
    ) -> None:
        """Start the clock.

        Args:
            console: where to show; a console that is no terminal gets plain lines.
            total: groups of the whole job; `None` while unknown.
            done_before: groups that an earlier run of the same job finished.
            plain_every_s: least time between two plain lines.
        """
        self.summary = Summary()
        self.in_flight = 0
        self._console = console
        self._plain_every_s = plain_every_s
        self.start(total=total, done_before=done_before)
        self._live = Live(get_renderable=self._line, console=console, transient=True, refresh_per_second=4)

    def start(self, *, total: int | None, done_before: int) -> None:
        """Start the clock anew, now that the work is known."""
        self._total = total
        self._done_before = done_before
        self._started = monotonic()
        self._last_plain = self._started

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

    @contextmanager
    def rollout(self, _: InFlight) -> Generator[None]:
        """A rollout in flight."""
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1

    def group_done(self, credited: CreditedGroup) -> None:
        """A group that is on disk."""
        self.summary.add(credited)
        self._print_plain()

    def rolled_out(self, group: TrajectoryGroup) -> None:
        """A group of an evaluation."""
        self.summary.add_rollouts(group, "evaluated")
        self._print_plain()

    def say(self, line: str) -> None:
        """Show a line."""
        self._console.print(line, soft_wrap=True, markup=False, highlight=False)

    def _print_plain(self) -> None:
        now = monotonic()
        if not self._console.is_terminal and now - self._last_plain >= self._plain_every_s:
            self._last_plain = now
            self.say(self.line())

    def line(self) -> str:
        """Groups done, rollouts in flight, mean score, failures, rate and time left, in one line."""
        done = self._done_before + self.summary.done
        elapsed = self.elapsed_s
        rate = self.summary.done / elapsed if elapsed > 0 else 0.0
        mean = self.summary.score.mean
        parts = [
            f"groups {done}" + (f"/{self._total}" if self._total is not None else ""),
            f"{self.in_flight} in flight",
            "mean score -" if mean is None else f"mean score {mean:.3f}",
            f"{self.summary.failures.total()} dropped",
            f"{rate * 60:.1f}/min",
        ]
        if self._total is not None and rate > 0:
            parts.append(f"ETA {duration(max(0, self._total - done) / rate)}")
        return " · ".join(parts)

    def _line(self) -> Text:
        return Text(self.line())
