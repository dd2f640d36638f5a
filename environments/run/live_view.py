"""What a terminal shows of a run while it goes: groups, rewards by turn, calls, tokens and failures."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from environments.record.summary import counts, weights_text
from environments.record.totals import Summary
from environments.run.rollouts_in_flight import RolloutsInFlight

REFRESH_PER_S = 2.0
MOST_TURNS = 16
_NAME_CELLS, _TURN_CELLS = 11, 7
_BAR_CELLS = 72


class LiveView:
    """A live picture on a terminal, nothing elsewhere. Whatever it meets, the run goes on."""

    def __init__(self, console: Console, picture: Callable[[], RenderableType]) -> None:
        """Prepare it; `picture` is asked by a thread, a few times a second."""
        self._picture = picture
        self._last: RenderableType = ""
        self._live = Live(
            get_renderable=self._shown, console=console, transient=True, refresh_per_second=REFRESH_PER_S
        )

    def __enter__(self) -> Self:
        if self._live.console.is_terminal:
            with suppress(OSError, ValueError):
                self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The terminal may be gone.
        with suppress(OSError, ValueError):
            self._live.stop()

    @property
    def is_shown(self) -> bool:
        """Whether a terminal shows it."""
        return self._live.is_started

    def _shown(self) -> RenderableType:
        # The run changes meanwhile what it reads: then it shows what it showed before.
        with suppress(Exception):
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
    """All of it in few lines, none longer than the terminal is wide.

    Args:
        head: the line that stands above.
        summary: of the groups so far.
        in_flight: what goes on.
        width: of the terminal, in cells.
        tokens_per_s: sampled lately, where that is known.
        share: done of the whole job, where that is known.
    """
    doing, numbers = counts(in_flight.doing()), summary.values()
    tokens = numbers["tokens"]["sampled"]
    rate = "" if tokens_per_s is None else f", {tokens_per_s:,.0f}/s in finished groups"
    rows = [
        ("in flight", f"{len(in_flight)}{f': {doing}' if doing else ''}"),
        ("oldest", in_flight.oldest() or ""),
        ("tokens", f"{tokens:,} sampled{rate}" if tokens else ""),
        ("failures", counts(numbers["failure_classes"])),
        ("weights", weights_text(numbers)),
    ]
    lines = Table.grid(padding=(0, 1), expand=False)
    lines.add_column(style="bold", width=_NAME_CELLS, no_wrap=True)
    lines.add_column(no_wrap=True, overflow="ellipsis", max_width=max(1, width - _NAME_CELLS - 2))
    for name, text in rows:
        if text:
            lines.add_row(name, _plain(text))
    return Group(
        *_bar(share, width), _plain(head, overflow="fold"), *_turns(numbers["by_turn"], width), lines
    )


def _bar(share: float | None, width: int) -> list[RenderableType]:
    if share is None:
        return []
    bar = Table.grid(padding=(0, 1))
    bar.add_row(ProgressBar(total=1.0, completed=share, width=min(width - 8, _BAR_CELLS)), f"{share:.0%}")
    return [bar]


def _turns(by_turn: Sequence[Mapping[str, Any]], width: int) -> list[RenderableType]:
    """By turn as many columns as there is room for."""
    room = max(1, (width - _NAME_CELLS - 1) // _TURN_CELLS)
    turns = by_turn[: min(room, MOST_TURNS)]
    if not turns:
        return []
    rows: list[tuple[str, Sequence[str]]] = [
        ("turn", [str(index + 1) for index in range(len(turns))]),
        ("rollouts", [_short(each["rollouts"]) for each in turns]),
    ]
    if any(each["scored"] for each in turns):
        rows.append(("reward", [_mean(each["reward"]["mean"]) for each in turns]))
    return [
        Text(f"{name:<{_NAME_CELLS}}", style="bold").append(_cells(cells), style="not bold")
        for name, cells in rows
    ]


def _cells(texts: Sequence[str]) -> str:
    return "".join(f"{text[: _TURN_CELLS - 1]:>{_TURN_CELLS}}" for text in texts)


def _mean(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.2g}"


def _short(number: int) -> str:
    return f"{number:,}" if number < 100_000 else f"{number / 1000:.0f}k"


def _plain(text: str, *, overflow: str = "ellipsis") -> Text:
    """Text as it is, in cells that a terminal cannot be steered with."""
    shown = "".join(each if each.isprintable() else " " for each in text)
    return Text(shown, overflow="fold" if overflow == "fold" else "ellipsis", no_wrap=overflow != "fold")
