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
    PageJudgeCall,
    PageMessage,
    PageResult,
    PageTurn,
    RolloutBlock,
    RolloutEntry,
)
from environments.viewer.terminal_ledger import credit_lines
from environments.viewer.terminal_run import table
from environments.viewer.terminal_text import in_line, json_line, number, numbers, shown, signed

COLUMN = 72
"""Least width of a sibling beside another."""
_INDENT = (0, 0, 0, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownGroup:
    """A group with all of its blocks, as far as they are to be shown."""

    entry: GroupEntry
    block: GroupBlock
    rollouts: Sequence[tuple[RolloutEntry, RolloutBlock]]
    """Each with its blocks as one."""
    turns: Container[int] | None = None
    """Which turns; `None`: all."""

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
    last = max((len(block["turns"]) for _, block in group.rollouts), default=0)
    for index in range(last):
        if group.turns is None or index in group.turns:
            there = [
                (entry, block["turns"][index])
                for entry, block in group.rollouts
                if index < len(block["turns"])
            ]
            yield Rule(Text(f"turn {index}"), align="left", style="dim")
            yield _beside([_turn(entry, turn) for entry, turn in there], width)
    if group.turns is None:
        yield Rule(Text("ends"), align="left", style="dim")
        yield _beside([_end(entry, block) for entry, block in group.rollouts], width)


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
        "item": json_line(block["item"]),
        "tools": ", ".join(in_line(tool["name"]) for tool in block["tools"]),
    }
    for name, text in facts.items():
        if text:
            yield Text(f"{name:<8}", style="bold").append(text, style="not bold")
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
            str(len(turns["kind"])),
            f"{sum(turns['tokens']):,}",
            Text(f"{each['stop']}{end}"),
        )
    yield Text()
    yield made
    yield from _judged(block["judge_calls"])


def _failure(failure: PageFailure) -> Iterator[RenderableType]:
    yield Text(f"sibling {failure['sibling']} was dropped: ", style="bold red").append(
        in_line(failure["error"]), style="not bold"
    )
    if failure["traceback"]:
        yield Padding(Text(shown(failure["traceback"]), style="dim"), _INDENT)
    yield from _judged(failure["judge_calls"])


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
            yield from _message(message)


def _turn(entry: RolloutEntry, turn: PageTurn) -> RenderableType:
    return Group(*_turn_parts(entry, turn), Text())


def _turn_parts(entry: RolloutEntry, turn: PageTurn) -> Iterator[RenderableType]:
    ledger = turn["ledger"]
    reward = "not scored" if ledger["reward"] is None else f"reward {number(ledger['reward'])}"
    kind = "" if turn["kind"] == "act" else f" · {turn['kind']}"
    heading = Text(f"sibling {entry['sibling']}", style="bold cyan")
    heading.append(f"{kind} · {reward} · advantage ", style="not bold default")
    yield heading.append(signed(ledger["advantage"]), style=_colour(ledger["advantage"]))
    if turn["fork"]:
        yield _note("new row", in_line(turn["fork"]))
    yield from _condensed(turn)
    yield from _spoken(turn["message"])
    for result in turn["results"]:
        yield from _result(result)
    for reply in turn["replies"]:
        yield from _message(reply)
    if turn["finish_reason"] not in ("stop", "tool_calls"):
        yield _note("finished", in_line(turn["finish_reason"]))
    if turn["parts"]:
        yield _note("parts", numbers(turn["parts"]))
    if turn["raw"] and turn["raw"] != turn["parts"]:
        yield _note("raw", numbers(turn["raw"]))
    if turn["noted"]:
        yield _note("noted", numbers(turn["noted"]))
    yield from (_note(name, text) for name, text in credit_lines(turn))
    yield from _judged(turn["judge_calls"])


def _condensed(turn: PageTurn) -> Iterator[RenderableType]:
    condensed = turn["condensed"]
    if condensed is not None:
        about = "about " if condensed["is_estimate"] else ""
        yield _note(
            "condensed",
            f"{in_line(condensed['cause'])}: {about}{condensed['tokens_before']:,} → "
            f"{condensed['tokens_after']:,} tokens",
        )
    if turn["saw"] is not None:
        parts = [
            f"messages {part['start']} to {part['end'] - 1}" if "start" in part else "what was put in"
            for part in turn["saw"]
        ]
        yield _note("saw", ", ".join(parts) or "nothing")
        for part in turn["saw"]:
            if "message" in part:
                yield from _message(part["message"])


def _spoken(message: PageMessage) -> Iterator[RenderableType]:
    if "reasoning" in message:
        yield Padding(Text(shown(message["reasoning"]), style="dim italic"), _INDENT)
    if message["content"]:
        yield Padding(Text(shown(message["content"])), _INDENT)
    for call in message.get("calls", ()):
        status = "" if call["status"] == "ok" else f" ({call['status']})"
        yield Padding(
            Text(f"→ {in_line(call['name'])}{status} ", style="bold").append(
                shown(call["arguments"]), style="not bold"
            ),
            _INDENT,
        )


def _result(result: PageResult) -> Iterator[RenderableType]:
    facts = [
        f"exit {result['exit_code']}" if result["exit_code"] is not None else "",
        result["error"] or "",
        "timed out" if result["timed_out"] else "",
    ]
    said = ", ".join(filter(None, facts))
    failed = result["error"] or result["timed_out"] or result["exit_code"]
    yield Padding(
        Text(f"← {in_line(result['name'])} {said}".rstrip(), style="red" if failed else "green"), _INDENT
    )
    yield Padding(Text(shown(result["content"])), (0, 0, 0, 4))


def _message(message: PageMessage) -> Iterator[RenderableType]:
    yield Padding(Text(message["role"], style="magenta"), _INDENT)
    yield from (Padding(each, _INDENT) for each in _spoken(message))


def _end(entry: RolloutEntry, block: RolloutBlock) -> RenderableType:
    end = f": {in_line(entry['end'])}" if entry["end"] else ""
    lines: list[RenderableType] = [
        Text(f"sibling {entry['sibling']}", style="bold cyan").append(
            f" · {entry['stop']}{end} · score {number(entry['score'])}", style="not bold default"
        )
    ]
    if block["outcome_parts"]:
        lines.append(_note("outcome", numbers(block["outcome_parts"])))
    if block["metrics"]:
        lines.append(_note("metrics", numbers(block["metrics"])))
    return Group(*lines, *_judged(block["judge_calls"]), Text())


def _judged(calls: Sequence[PageJudgeCall]) -> Iterator[RenderableType]:
    """What second models were asked last, and their answers."""
    for call in calls:
        yield _note(call["role"], f"{in_line(call['model'])}, asked by {in_line(call['hook'])}")
        if call["messages"]:
            yield Padding(Text(shown(call["messages"][-1]["content"]), style="dim"), (0, 0, 0, 4))
        answer = "it takes no such question" if call["answer"] is None else shown(call["answer"])
        yield Padding(Text(answer), (0, 0, 0, 4))


def _note(name: str, text: str) -> RenderableType:
    return Padding(Text(f"{name:<10}", style="bold dim").append(text, style="not bold not dim"), _INDENT)


def _colour(value: float) -> str:
    return "green" if value > 0 else "red" if value < 0 else "default"
