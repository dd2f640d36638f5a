"""`turnwise show`: a record in a terminal, for a machine without a browser."""

import io
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console, RenderableType

from environments.record.group_line import decode_group, parse_head
from environments.record.recorder import numbered_lines, read_contents, read_groups
from environments.record.run_folder import record_at
from environments.run.run_log import CountedOnce
from environments.viewer.page_values import GroupEntry, PageContent, RolloutEntry, TextCutter, group_values
from environments.viewer.record_page import IndexBuilder, title_of
from environments.viewer.terminal_group import ShownGroup, group_parts, run_parts
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
    builder = IndexBuilder(
        title=title_of(record),
        source=str(record),
        content=_content(100),
        counts=CountedOnce(read_contents(record).finished),
    )
    for number, credited in enumerate(read_groups(record), start=1):
        builder.add(credited, number, _forget)
    yield from run_parts(builder.index(cut=[], live=False))


def _forget(name: str, block: Any) -> None:
    """A list shows no block."""


def _item(record: Path, item: str, options: dict[str, Any], width: int) -> Iterator[RenderableType]:
    wanted = _lines_of(record, item, options["epoch"])
    for number, line in numbered_lines(record):
        if number not in wanted:
            continue
        blocks: dict[str, Any] = {}
        content = _content(options["max_text"])
        credited = decode_group(line, record, number)
        group = group_values(credited, number, content, (), blocks.__setitem__)
        siblings, turns = options["sibling"] or None, options["turn"] or None
        _refuse_others(group, siblings or (), turns or ())
        yield from group_parts(ShownGroup.of(group, blocks, siblings=siblings, turns=turns), width=width)


def _content(max_chars: int) -> PageContent:
    return PageContent(cutter=TextCutter(max_chars=max_chars), tokens=False)


def _lines_of(record: Path, item: str, epoch: int | None) -> set[int]:
    """The numbers of an item's lines.

    Raises:
        UsageError: there is none.
    """
    names: dict[str, None] = {}  # in the order of the record
    epochs: dict[int, int] = {}
    """By line, of the item."""
    for number, line in numbered_lines(record):
        head = parse_head(line, record, number)
        name = str(head.get("item_id"))
        names[name] = None
        if name == item:
            epochs[number] = int(head.get("epoch") or 0)
    if not epochs:
        more = ", …" if len(names) > _NAMED_ITEMS else ""
        known = ", ".join(map(ascii, list(names)[:_NAMED_ITEMS])) + more or "none"
        raise UsageError(f"{record} has no item {item!r}; it has {known}")
    wanted = {number for number, each in epochs.items() if epoch in (None, each)}
    if not wanted:
        there = ", ".join(map(str, sorted(set(epochs.values()))))
        raise UsageError(f"item {item!r} has no epoch {epoch}; it has {there}")
    return wanted


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
