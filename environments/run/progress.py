"""Progress of a run: a live view on a terminal, otherwise a plain line now and then."""

import textwrap
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from environments.record.summary import (
    counts,
    duration,
    forks_in_short,
    headline,
    rewards_by_turn,
    weights_text,
)
from environments.record.totals import Summary
from environments.rollout.containment.hook_calls import InFlight, InFlightNow
from environments.run.group_source import GroupNote
from environments.run.run_list import RunLog
from environments.run.tracking import Observers
from tools.plain_text import decimals, printable

_ITEM_CHARS = 80
_DOING_CHARS = 40
REFRESH_PER_S = 2.0
_NAME_CELLS = 11
_BAR_CELLS = 72
PLAIN_EVERY_S = 5.0
HEARTBEAT_S = 30.0
"""Silence after which a line names what the run waits for."""


class RolloutsInFlight:
    def __init__(self) -> None:
        self._rollouts: dict[int, InFlight] = {}
        self.elsewhere: Mapping[int, InFlightNow] = {}

    @contextmanager
    def watch(self, rollout: InFlight) -> Generator[None]:
        self._rollouts[id(rollout)] = rollout
        try:
            yield
        finally:
            del self._rollouts[id(rollout)]

    def __len__(self) -> int:
        return len(self._rollouts) + sum(each.count for each in list(self.elsewhere.values()))

    def doing(self) -> Counter[str]:
        return sum((each.doing for each in [self.now(), *list(self.elsewhere.values())]), Counter[str]())

    def oldest(self) -> str | None:
        return max([self.now(), *self.elsewhere.values()], key=lambda each: each.oldest_s).oldest

    def now(self) -> InFlightNow:
        rollouts = list(self._rollouts.values())  # a snapshot, in the order of starts
        if not rollouts:
            return InFlightNow()
        oldest, doing = rollouts[0], Counter(each.doing.partition(",")[0][:_DOING_CHARS] for each in rollouts)
        item = textwrap.shorten(oldest.item_id, _ITEM_CHARS) or repr(oldest.item_id)
        lasts_s = monotonic() - oldest.started
        text = f"item {item}, rollout {oldest.sibling}, {duration(lasts_s)}, {oldest.doing}"
        return InFlightNow(count=len(rollouts), doing=doing, oldest=text, oldest_s=lasts_s)


class LiveView:
    def __init__(self, console: Console, picture: Callable[[], RenderableType]) -> None:
        self._picture = picture
        self._last: RenderableType = ""
        self._live = Live(
            get_renderable=self._render, console=console, transient=True, refresh_per_second=REFRESH_PER_S
        )

    def __enter__(self) -> Self:
        if self._live.console.is_terminal:
            with suppress(OSError, ValueError):
                self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError, ValueError):
            self._live.stop()

    @property
    def is_shown(self) -> bool:
        return self._live.is_started

    def _render(self) -> RenderableType:
        with suppress(Exception):  # the run changes its values meanwhile
            self._last = self._picture()
        return self._last


def picture(
    head: str,
    summary: Summary,
    in_flight: RolloutsInFlight,
    *,
    width: int,
    tokens_per_s: float | None = None,
    share: float | None = None,
) -> RenderableType:
    """Return the live view below the line `head`; no line is wider than the terminal."""
    doing, numbers = counts(in_flight.doing()), summary.values()
    tokens = numbers["tokens"]["sampled"]
    rate = "" if tokens_per_s is None else f", {tokens_per_s:,.0f}/s in finished groups"
    rows = [
        ("in flight", f"{len(in_flight)}{f': {doing}' if doing else ''}"),
        ("oldest", in_flight.oldest() or ""),
        ("by turn", rewards_by_turn(numbers["by_turn"])),
        ("tokens", f"{tokens:,} sampled{rate}" if tokens else ""),
        ("failures", counts(numbers["failure_classes"])),
        ("weights", weights_text(numbers)),
    ]
    lines = Table.grid(padding=(0, 1), expand=False)
    lines.add_column(style="bold", width=_NAME_CELLS, no_wrap=True)
    lines.add_column(no_wrap=True, overflow="ellipsis", max_width=max(1, width - _NAME_CELLS - 2))
    for name, text in rows:
        if text:
            # `printable`: an environment's text must not control the terminal.
            lines.add_row(name, Text(printable(text), overflow="ellipsis", no_wrap=True))
    shown: list[RenderableType] = [Text(printable(head), overflow="fold"), lines]
    if share is not None:
        bar = Table.grid(padding=(0, 1))
        bar.add_row(ProgressBar(total=1.0, completed=share, width=min(width - 8, _BAR_CELLS)), f"{share:.0%}")
        shown.insert(0, bar)
    return Group(*shown)


class Progress:
    def __init__(self, console: Console, *, log: RunLog | None = None) -> None:
        self.summary = Summary()
        self.in_flight = RolloutsInFlight()
        self.rollout = self.in_flight.watch
        self._console, self._log = console, log
        self.observers = Observers()
        self.live = LiveView(console, self._picture)
        self._is_ready = False
        self._total: int | None = None
        self._done_before = 0
        self._started = self._last_plain = self._last_line = monotonic()

    def start(self, *, total: int | None, done_before: int) -> None:
        """Restart the clock when the work is known.

        `total` is the groups of the whole job, `None` if unknown; `done_before` of them are from earlier
        runs.
        """
        self._total, self._done_before = total, done_before
        self._started = self._last_plain = monotonic()

    def ready(self) -> None:
        self._is_ready = True

    @property
    def elapsed_s(self) -> float:
        return monotonic() - self._started

    def group_done(self, note: GroupNote) -> None:
        self.summary.merge(note.summary)
        now = monotonic()
        if not self._console.is_terminal and now - self._last_plain >= PLAIN_EVERY_S:
            self._last_plain = now
            self.say(self.line())

    def say(self, line: str) -> None:
        self._last_line = monotonic()
        line = "\n".join(map(printable, line.split("\n")))
        self._console.print(line, soft_wrap=True, markup=False, highlight=False)
        if self._log is not None:
            self._log.add(line)

    def print(self, show: Callable[[Console], None]) -> None:
        show(self._console)
        if self._log is not None:
            self._log.add_printed(show)

    def heartbeat(self, where: str | None) -> None:
        """Show what the run waits for after `HEARTBEAT_S` of silence; thread-safe.

        `where` is the place in the environment's code that holds the event loop, if any.
        """
        if self.live.is_shown or monotonic() - self._last_line < HEARTBEAT_S:
            return
        if oldest := self.in_flight.oldest():
            self.say(f"{self.line()} · oldest: {oldest}")
        elif not self._is_ready:
            at = "" if where is None else f", at {where}"
            self.say(f"not ready after {duration(self.elapsed_s)}: setup, items, sandboxes and the model{at}")

    def line(self) -> str:
        done, elapsed = self._done_before + self.summary.done, self.elapsed_s
        rate = self.summary.done / elapsed if elapsed > 0 else 0.0
        numbers = self.summary.values()
        images = numbers["sandboxes"]["images"]
        parts = [
            f"groups {done}" + (f"/{self._total}" if self._total is not None else ""),
            f"{len(self.in_flight)} in flight",
            f"mean score {decimals(numbers['score']['mean'])}",
            headline(numbers),
            f"{numbers['rollouts']['dropped']} dropped",
            f"{rate * 60:.1f}/min",
            f"{images} images" if images > 1 else "",
            forks_in_short(numbers),
        ]
        if self._total is not None and rate > 0:
            parts.append(f"ETA {duration(max(0, self._total - done) / rate)}")
        return " · ".join(filter(None, parts))

    def _picture(self) -> RenderableType:
        done, tokens = self._done_before + self.summary.done, self.summary.totals["tokens"]["sampled"]
        return picture(
            self.line(),
            self.summary,
            self.in_flight,
            width=self._console.width,
            tokens_per_s=tokens / max(1e-3, self.elapsed_s),
            share=min(1.0, done / self._total) if self._total else None,
        )
