"""A turn in a terminal: what was said, called and answered, how it was scored, and its credit."""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from environments.viewer.page_values import PageJudgeCall, PageMessage, PageResult, PageTurn, RolloutEntry
from environments.viewer.terminal_ledger import credit_lines
from environments.viewer.terminal_text import in_line, number, numbers, shown, signed

INDENT = (0, 0, 0, 2)
UNKNOWN = "unknown"
"""A version of the weights that nobody said."""
_DEEPER = (0, 0, 0, 4)
_NAME_WIDTH = 9


def turn_cell(entry: RolloutEntry, turn: PageTurn, row: int, *, weights: bool = False) -> RenderableType:
    """A turn of a sibling, which names itself where summaries made it another than its row's.

    With `weights` it says which version of them sampled it.
    """
    own = turn["index"] + 1
    version = turn["weight_version"]
    said = [note_line("weights", UNKNOWN if version is None else in_line(version))] if weights else []
    return Group(*_turn_parts(entry, turn, "" if own == row else f" · turn {own}"), *said, Text())


def _turn_parts(entry: RolloutEntry, turn: PageTurn, which: str) -> Iterator[RenderableType]:
    ledger = turn["ledger"]
    reward = "not scored" if ledger.reward is None else f"reward {number(ledger.reward)}"
    kind = "" if turn["kind"] == "act" else f" · {turn['kind']}"
    heading = Text(f"sibling {entry['sibling']}", style="bold cyan")
    heading.append(f"{which}{kind} · {reward} · advantage ", style="not bold default")
    yield heading.append(signed(ledger.advantage), style=_colour(ledger.advantage))
    if turn["fork"]:
        yield note_line("new row", in_line(turn["fork"]))
    yield from _condensed(turn)
    yield from _spoken(turn["message"])
    for result in turn["results"]:
        yield from _result(result)
    for reply in turn["replies"]:
        yield from message_lines(reply)
    if turn["finish_reason"] not in ("stop", "tool_calls"):
        yield note_line("finished", in_line(turn["finish_reason"]))
    if turn["parts"]:
        yield note_line("parts", numbers(turn["parts"]))
    if turn["raw"] and turn["raw"] != turn["parts"]:
        yield note_line("raw", numbers(turn["raw"]))
    if turn["noted"]:
        yield note_line("noted", numbers(turn["noted"]))
    yield from (note_line(name, text) for name, text in credit_lines(turn))
    yield from judged_lines(turn["judge_calls"])


def _condensed(turn: PageTurn) -> Iterator[RenderableType]:
    condensed = turn["condensed"]
    if condensed is not None:
        about = "about " if condensed["is_estimate"] else ""
        yield note_line(
            "condensed",
            f"{in_line(condensed['cause'])}: {about}{condensed['tokens_before']:,} → "
            f"{condensed['tokens_after']:,} tokens",
        )
    if turn["saw"] is not None:
        parts = [
            f"messages {part['start'] + 1} to {part['end']}" if "start" in part else "what was put in"
            for part in turn["saw"]
        ]
        yield note_line("saw", ", ".join(parts) or "nothing")
        for part in turn["saw"]:
            if "message" in part:
                yield from message_lines(part["message"])


def _spoken(message: PageMessage) -> Iterator[RenderableType]:
    if "reasoning" in message:
        yield Padding(Text(shown(message["reasoning"]), style="dim italic"), INDENT)
    if message["content"]:
        yield Padding(Text(shown(message["content"])), INDENT)
    elif not message.get("calls"):
        yield Padding(Text("(no text)", style="dim"), INDENT)
    for call in message.get("calls", ()):
        status = "" if call["status"] == "ok" else f" ({call['status']})"
        yield Padding(
            Text(f"→ {in_line(call['name'])}{status} ", style="bold").append(
                shown(call["arguments"]), style="not bold"
            ),
            INDENT,
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
        Text(f"← {in_line(result['name'])} {said}".rstrip(), style="red" if failed else "green"), INDENT
    )
    yield Padding(Text(shown(result["content"])), _DEEPER)


def message_lines(message: PageMessage) -> Iterator[RenderableType]:
    """A message below its role."""
    yield Padding(Text(message["role"], style="magenta"), INDENT)
    yield from (Padding(each, INDENT) for each in _spoken(message))


def judged_lines(calls: Sequence[PageJudgeCall]) -> Iterator[RenderableType]:
    """What second models were asked last, and their answers."""
    for call in calls:
        yield note_line(call["role"], f"{in_line(call['model'])}, asked by {in_line(call['hook'])}")
        if call["messages"]:
            yield Padding(Text(shown(call["messages"][-1]["content"]), style="dim"), _DEEPER)
        answer = "it takes no such question" if call["answer"] is None else shown(call["answer"])
        yield Padding(Text(f"→ {answer}"), _DEEPER)


def note_line(name: str, text: str) -> RenderableType:
    """A name with a text that stays in its column."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=_NAME_WIDTH)
    grid.add_column(overflow="fold")
    grid.add_row(Text(name, style="bold dim"), Text(text))
    return Padding(grid, INDENT)


def _colour(value: float) -> str:
    return "green" if value > 0 else "red" if value < 0 else "default"
