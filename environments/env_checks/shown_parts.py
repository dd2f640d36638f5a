"""What `turnwise check` shows above its table: prompt, tools, hooks and one rollout, as lines."""

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from environments.inference.http_client import one_line
from environments.plain_text import printable

_MOST_LINES = 40
"""Of one part."""
_Values = Sequence[Mapping[str, Any]]


def shown_lines(shown: Mapping[str, Any], width: int) -> Iterator[str]:
    """The parts that there are, cut where they get long."""
    for name, title, lines_of in (
        ("prompt", "Prompt, as the model sees it", _prompt),
        ("tools", "Tools, as the model sees them", _tools),
        ("hooks", "Calls of the first rollout, in order, and what each gave", _calls),
        ("rollout", "The first rollout", _rollout),
    ):
        if shown.get(name):
            lines = list(lines_of(shown[name], width - 2))
            yield title
            for line in lines[:_MOST_LINES]:
                yield f"  {line}"
            if len(lines) > _MOST_LINES:
                yield f"  … and {len(lines) - _MOST_LINES} more lines (--json has them)"
            yield ""


def _prompt(messages: _Values, width: int) -> Iterator[str]:
    for message in messages:
        yield from _wrapped(f"{message['role']}: {message['content']}", width)


def _tools(tools: _Values, width: int) -> Iterator[str]:
    for tool in tools:
        yield from _wrapped(json.dumps(tool, ensure_ascii=False), width)


def _calls(calls: _Values, width: int) -> Iterator[str]:
    longest = max(len(call["name"]) for call in calls)
    for call in calls:
        given = _cut(call["given"], width - longest - 15)
        yield f"{call['name']:<{longest}} {1000 * call['seconds']:>8.1f} ms  {given}"


def _rollout(turns: _Values, width: int) -> Iterator[str]:
    for turn in turns:
        reward = "" if turn["reward"] is None else f" [{turn['reward']:.3g}]"
        acts = " ".join([turn["says"], *turn["calls"]]).strip() or "(nothing)"
        yield f"turn {turn['turn'] + 1}{reward}: {_cut(acts, width - 20)}"
        for answer in turn["answers"]:
            yield f"    → {_cut(answer, width - 8)}"


def _wrapped(text: str, width: int) -> Iterator[str]:
    for line in text.splitlines():
        plain = printable(line, "\N{REPLACEMENT CHARACTER}")
        yield from textwrap.wrap(plain, max(20, width), subsequent_indent="    ") or [""]


def _cut(text: str, width: int) -> str:
    line, width = one_line(text), max(20, width)
    return line if len(line) <= width else f"{line[: width - 1]}…"
