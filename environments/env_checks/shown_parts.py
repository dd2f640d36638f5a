"""What `turnwise check` shows above its table: prompt, tools, hooks and one rollout, as lines."""

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from environments.inference.http_client import one_line
from environments.plain_text import printable

_PROMPT_LINES = 24
_HOOKS = 40
_TURNS = 20


def shown_lines(shown: Mapping[str, Any], width: int) -> Iterator[str]:
    """The parts that there are; what is cut is said."""
    for name, title, part in (
        ("prompt", "Prompt, as the model sees it", _prompt),
        ("tools", "Tools, as the model sees them", _tools),
        ("hooks", "Calls of the first rollout, in order, and what each gave", _calls),
        ("rollout", "The first rollout", _rollout),
    ):
        if shown.get(name):
            yield title
            for line in part(shown[name], width - 2):
                yield f"  {line}"
            yield ""


def _prompt(messages: Sequence[Mapping[str, Any]], width: int) -> Iterator[str]:
    lines = [
        line
        for message in messages
        for line in _wrapped(f"{message['role']}: {message['content']}", width, "    ")
    ]
    yield from _first(lines, _PROMPT_LINES, "lines")


def _tools(tools: Sequence[Mapping[str, Any]], width: int) -> Iterator[str]:
    for tool in tools:
        yield from _wrapped(json.dumps(tool, ensure_ascii=False), width, "    ")


def _calls(calls: Sequence[Mapping[str, Any]], width: int) -> Iterator[str]:
    longest = max(len(call["name"]) for call in calls)
    room = width - longest - 15
    lines = [
        f"{call['name']:<{longest}} {1000 * call['seconds']:>8.1f} ms  {_cut(call['given'], room)}"
        for call in calls
    ]
    yield from _first(lines, _HOOKS, "calls")


def _rollout(turns: Sequence[Mapping[str, Any]], width: int) -> Iterator[str]:
    lines: list[str] = []
    for turn in turns:
        reward = "" if turn["reward"] is None else f" [{turn['reward']:.3g}]"
        acts = " ".join([turn["says"], *turn["calls"]]).strip() or "(nothing)"
        lines.append(f"turn {turn['turn'] + 1}{reward}: {_cut(acts, width - 20)}")
        lines += [f"    → {_cut(answer, width - 8)}" for answer in turn["answers"]]
    yield from _first(lines, _TURNS * 2, "lines")


def _wrapped(text: str, width: int, indent: str) -> Iterator[str]:
    for line in text.splitlines():
        yield from textwrap.wrap(
            printable(line, "\N{REPLACEMENT CHARACTER}"), max(20, width), subsequent_indent=indent
        ) or [""]


def _cut(text: str, width: int) -> str:
    line, width = one_line(text), max(20, width)
    return line if len(line) <= width else f"{line[: width - 1]}…"


def _first(lines: Sequence[str], most: int, what: str) -> Iterator[str]:
    yield from lines[:most]
    if len(lines) > most:
        yield f"… and {len(lines) - most} more {what} (--json has them)"
