"""A group in a terminal: its siblings turn by turn, how each turn was credited, and against whom."""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from environments.viewer.page_values import (
    GroupBlock,
    GroupEntry,
    PageFailure,
    PageMessage,
    PageTurn,
    RolloutBlock,
    RolloutEntry,
)
from environments.viewer.terminal_run import table
from environments.viewer.terminal_text import in_line, json_line, number, numbers, shown
from environments.viewer.terminal_turn import (
    INDENT,
    UNKNOWN,
    judged_lines,
    message_lines,
    note_line,
    turn_cell,
)

COLUMN = 72
"""Least width of a sibling beside another."""
_ITEM_CHARS = 300
"""Of a field of an item."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownGroup:
    """A group with all of its blocks, as far as they are to be shown."""

    entry: GroupEntry
    block: GroupBlock
    rollouts: Sequence[tuple[RolloutEntry, RolloutBlock]]
    """Each with its blocks as one."""
    turns: Container[int] | None = None
    """Which turns, counted from 1; `None`: all."""

    @classmethod
    def of(
        cls,
        entry: GroupEntry,
        blocks: Mapping[str, Any],
        *,
        siblings: Container[int] | None = None,
        turns: Container[int] | None = None,
    ) -> "ShownGroup":
        """The siblings and turns that are wanted, `None`: all, with their blocks by name."""
        wanted = [each for each in entry["rollouts"] if siblings is None or each["sibling"] in siblings]
        block = cast("GroupBlock", blocks[entry["block"]])
        failures = [each for each in block["failures"] if siblings is None or each["sibling"] in siblings]
        return cls(
            entry=entry,
            block={**block, "failures": failures},
            rollouts=[(each, _joined([blocks[name] for name in each["blocks"]])) for each in wanted],
            turns=turns,
        )


def group_parts(group: ShownGroup, *, width: int) -> Iterator[RenderableType]:
    """What is printed of a group, part by part.

    Args:
        group: the group.
        width: of the terminal; where it is wide, siblings stand beside each other.
    """
    yield from _heading(group)
    for failure in group.block["failures"]:
        yield from _failure(failure)
    if group.turns is None:
        yield from _opening(group.rollouts)
    for row, there in enumerate(_rows(group.rollouts), start=1):
        wanted = [(e, turn) for e, turn in there if group.turns is None or turn["index"] + 1 in group.turns]
        if wanted:
            yield Rule(Text(f"turn {row}"), align="left", style="dim")
            several = len(group.entry["weights"]) > 1
            yield _beside([turn_cell(entry, turn, row, weights=several) for entry, turn in wanted], width)
    if group.turns is None:
        yield Rule(Text("ends"), align="left", style="dim")
        yield _beside([_end(entry, block) for entry, block in group.rollouts], width)


def _rows(rollouts: Sequence[tuple[RolloutEntry, RolloutBlock]]) -> list[list[tuple[RolloutEntry, PageTurn]]]:
    """Turns that are compared with each other; a summary is with the act that follows it, as in credit."""
    rows: list[list[tuple[RolloutEntry, PageTurn]]] = []
    for entry, block in rollouts:
        acts = 0
        for turn in block["turns"]:
            if acts == len(rows):
                rows.append([])
            rows[acts].append((entry, turn))
            acts += turn["kind"] == "act"
    return rows


def _joined(blocks: Sequence[RolloutBlock]) -> RolloutBlock:
    return {**blocks[0], "turns": [turn for block in blocks for turn in block["turns"]]}


def _beside(cells: Sequence[RenderableType], width: int) -> Table:
    columns = max(1, min(len(cells), width // COLUMN))
    grid = Table.grid(padding=(0, 2), expand=True)
    for _ in range(columns):
        grid.add_column(ratio=1, overflow="fold")
    for start in range(0, len(cells), columns):
        grid.add_row(*cells[start : start + columns])
    return grid


def _heading(group: ShownGroup) -> Iterator[RenderableType]:
    entry, block = group.entry, group.block
    yield Text(f"item {in_line(entry['item'])}", style="bold").append(
        f" · epoch {entry['epoch']} · {entry['status']} · group {in_line(entry['id'])}", style="not bold"
    )
    facts = {
        "reason": in_line(entry["reason"] or ""),
        "error": in_line(block["error"] or ""),
        "weights": _several(entry["weights"]),
        "tools": ", ".join(in_line(tool["name"]) for tool in block["tools"]),
    }
    for name, text in facts.items():
        if text:
            yield Text(f"{name:<8}", style="bold").append(text, style="not bold")
    if group.turns is None:
        yield from _item(block["item"])
    made = table(
        "sibling",
        "score",
        "outcome",
        "turns",
        "tokens",
        "ended",
        right=("score", "outcome", "turns", "tokens"),
    )
    for each, _ in group.rollouts:
        turns, end = each["turns"], f": {in_line(each['end'])}" if each["end"] else ""
        made.add_row(
            str(each["sibling"]),
            number(each["score"]),
            number(each["outcome"]),
            str(turns["kind"].count("a")),
            f"{sum(turns['tokens']):,}",
            Text(f"{each['stop']}{end}"),
        )
    yield Text()
    yield made
    yield from judged_lines(block["judge_calls"])


def _several(versions: Sequence[str | None]) -> str:
    """The versions of the weights, where there are several."""
    names = [UNKNOWN if each is None else in_line(each) for each in versions]
    return f"several versions: {', '.join(names)}" if len(names) > 1 else ""


def _item(item: Any) -> Iterator[RenderableType]:
    """Each field in a line, or a few."""
    fields: Mapping[str, Any] = cast("Mapping[str, Any]", item) if isinstance(item, dict) else {"": item}
    if item is not None:
        yield Text("item", style="bold")
    for name, value in fields.items():
        text = json_line(value)
        if value is not None:
            short = text if len(text) <= _ITEM_CHARS else f"{text[:_ITEM_CHARS]}… ({len(text):,} characters)"
            yield Padding(
                Text(f"{in_line(name)} ", style="bold dim").append(short, style="not bold not dim"), INDENT
            )


def _failure(failure: PageFailure) -> Iterator[RenderableType]:
    yield Text(f"sibling {failure['sibling']} was dropped: ", style="bold red").append(
        in_line(failure["error"]), style="not bold"
    )
    if failure["traceback"]:
        yield Padding(Text(shown(failure["traceback"]), style="dim"), INDENT)
    yield from judged_lines(failure["judge_calls"])


def _opening(rollouts: Sequence[tuple[RolloutEntry, RolloutBlock]]) -> Iterator[RenderableType]:
    """The prompt; where siblings have others, each."""
    prompts: list[tuple[list[int], list[PageMessage]]] = []
    for entry, block in rollouts:
        same = next((siblings for siblings, prompt in prompts if prompt == block["prompt"]), None)
        if same is None:
            prompts.append(([entry["sibling"]], block["prompt"]))
        else:
            same.append(entry["sibling"])
    for siblings, prompt in prompts:
        whose = "" if len(prompts) == 1 else f" of sibling {', '.join(map(str, siblings))}"
        yield Rule(Text(f"opening{whose}"), align="left", style="dim")
        for message in prompt:
            yield from message_lines(message)


def _end(entry: RolloutEntry, block: RolloutBlock) -> RenderableType:
    end = f": {in_line(entry['end'])}" if entry["end"] else ""
    lines: list[RenderableType] = [
        Text(f"sibling {entry['sibling']}", style="bold cyan").append(
            f" · {entry['stop']}{end} · score {number(entry['score'])}", style="not bold default"
        )
    ]
    if block["outcome_parts"]:
        lines.append(note_line("outcome", numbers(block["outcome_parts"])))
    if block["metrics"]:
        lines.append(note_line("metrics", numbers(block["metrics"])))
    return Group(*lines, *judged_lines(block["judge_calls"]), Text())
