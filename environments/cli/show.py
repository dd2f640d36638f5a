"""`turnwise show`: a record in a terminal, for a machine without a browser."""

import io
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console, RenderableType

from environments.record.entries import read_entries, read_group_at
from environments.record.index_file import Entry
from environments.record.run_folder import record_at
from environments.viewer.group_values import group_values
from environments.viewer.page_texts import TextCutter
from environments.viewer.page_values import GroupEntry, RolloutEntry
from environments.viewer.record_page import IndexBuilder, title_of
from environments.viewer.terminal_group import ShownGroup, group_parts
from environments.viewer.terminal_run import run_parts
from environments.viewer.turn_values import PageContent
from tools.errors import UsageError

PLAIN_WIDTH = 100
"""Where nobody says how wide a line may be."""
_NAMED_ITEMS = 8


@click.command(name="show")
@click.argument("record", type=click.Path(path_type=Path))
@click.argument("item", required=False)
@click.option("--epoch", type=click.IntRange(min=0), help="Only this epoch of the item.")
@click.option("--sibling", type=int, multiple=True, help="Only this sibling; may be given again.")
@click.option("--turn", type=int, multiple=True, help="Only this turn, from 1; may be given again.")
@click.option("--width", type=click.IntRange(min=20), help="Columns of a line.  [default: the terminal's]")
@click.option(
    "--max-text",
    type=click.IntRange(min=100),
    default=4_000,
    show_default=True,
    help="Characters of one text beyond which its middle is cut.",
)
def command(record: Path, item: str | None, **options: Any) -> None:
    """Print RECORD, a rollout JSONL or a run: its groups, or those of ITEM turn by turn.

    With ITEM, siblings are aligned by turn, each with its credit ledger: reward, what follows it, whom it was
    compared with, advantage. What models wrote cannot drive the terminal.
    """
    record = record_at(record)
    width = options["width"] or (shutil.get_terminal_size().columns if sys.stdout.isatty() else PLAIN_WIDTH)
    if item is None:
        given = next((name for name in ("epoch", "sibling", "turn") if options[name] not in (None, ())), None)
        if given:
            raise UsageError(f"--{given} narrows an item; give ITEM, too")
        parts = _run(record)
    else:
        parts = _item(record, item, options, width)
    click.echo_via_pager(_printed(parts, width))


def _run(record: Path) -> Iterator[RenderableType]:
    builder = IndexBuilder(title=title_of(record), source=str(record), content=_content(100))
    for entry in read_entries(record):
        builder.add(read_group_at(record, entry), entry.number, _forget)
    yield from run_parts(builder.index(cut=[], live=False))


def _forget(name: str, block: Any) -> None:
    """A list shows no block."""


def _item(record: Path, item: str, options: dict[str, Any], width: int) -> Iterator[RenderableType]:
    for entry in _entries(record, item, options["epoch"]):
        blocks: dict[str, Any] = {}
        content = _content(options["max_text"])
        group = group_values(read_group_at(record, entry), entry.number, content, (), blocks.__setitem__)
        siblings, turns = options["sibling"] or None, options["turn"] or None
        _refuse_others(group, siblings or (), turns or ())
        yield from group_parts(ShownGroup.of(group, blocks, siblings=siblings, turns=turns), width=width)


def _content(max_chars: int) -> PageContent:
    return PageContent(cutter=TextCutter(max_chars=max_chars), tokens=False)


def _entries(record: Path, item: str, epoch: int | None) -> list[Entry]:
    """The lines of an item.

    Raises:
        UsageError: there is none.
    """
    every = read_entries(record)
    of_item = [entry for entry in every if str(entry.facts.get("item_id")) == item]
    if not of_item:
        names = list(dict.fromkeys(str(entry.facts.get("item_id")) for entry in every))
        more = ", …" if names[_NAMED_ITEMS:] else ""
        known = ", ".join(map(ascii, names[:_NAMED_ITEMS])) + more or "none"
        raise UsageError(f"{record} has no item {item!r}; it has {known}")
    found = [entry for entry in of_item if epoch in (None, int(entry.facts.get("epoch") or 0))]
    if not found:
        epochs = sorted({int(entry.facts.get("epoch") or 0) for entry in of_item})
        raise UsageError(f"item {item!r} has no epoch {epoch}; it has {', '.join(map(str, epochs))}")
    return found


def _refuse_others(group: GroupEntry, siblings: Iterable[int], turns: Iterable[int]) -> None:
    there = [each["sibling"] for each in (*group["rollouts"], *group["failures"])]
    for sibling in siblings:
        if sibling not in there:
            raise UsageError(
                f"no sibling {sibling}; there are {', '.join(map(str, sorted(there))) or 'none'}"
            )
    longest = max(map(_turn_count, group["rollouts"]), default=0)
    for turn in turns:
        if turn not in range(1, longest + 1):
            raise UsageError(f"no turn {turn}; the longest rollout has {longest}, counted from 1")


def _turn_count(rollout: RolloutEntry) -> int:
    return len(rollout["turns"]["kind"])


def _printed(parts: Iterable[RenderableType], width: int) -> Iterator[str]:
    """Parts as text, with colours for a terminal; whoever pages them takes away what it cannot show."""
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=sys.stdout.isatty(),
        markup=False,
        emoji=False,
        highlight=False,
    )
    for part in parts:
        with console.capture() as capture:
            console.print(part)
        yield "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())
