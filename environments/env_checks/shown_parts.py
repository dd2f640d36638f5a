"""What `turnwise check` shows above its table: prompt, tools, hooks and one rollout, as lines."""

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from environments.inference.http_client import one_line
from environments.plain_text import printable

PARTS = {
    "prompt": "Prompt, as the model sees it",
    "tools": "Tools, as the model sees them",
    "hooks": "Calls of the first rollout, in order, and what each gave",
    "rollout": "The first rollout",
}
"""By name in the report: the title."""
_MOST_LINES = 40
"""Of one part."""


def shown_lines(report: Mapping[str, Any], width: int) -> Iterator[str]:
    """The parts that there are, cut where they get long."""
    for name, title in PARTS.items():
        if values := report.get(f"shown {name}"):
            lines = list(_lines(name, values, width - 2))
            yield title
            yield from (f"  {line}" for line in lines[:_MOST_LINES])
            if len(lines) > _MOST_LINES:
                yield f"  … and {len(lines) - _MOST_LINES} more lines (--json has them)"
            yield ""


def _lines(part: str, values: Sequence[Mapping[str, Any]], width: int) -> Iterator[str]:
    for each in values:
        if part == "prompt":
            yield from _wrapped(f"{each['role']}: {each['content']}", width)
        elif part == "tools":
            yield from _wrapped(json.dumps(each, ensure_ascii=False), width)
        elif part == "hooks":
            longest = max(len(call["name"]) for call in values)
            given = _cut(each["given"], width - longest - 15)
            yield f"{each['name']:<{longest}} {1000 * each['seconds']:>8.1f} ms  {given}"
        else:
            reward = "" if each["reward"] is None else f" [{each['reward']:.3g}]"
            acts = " ".join([each["says"], *each["calls"]]).strip() or "(nothing)"
            yield f"turn {each['turn'] + 1}{reward}: {_cut(acts, width - 20)}"
            yield from (f"    → {_cut(answer, width - 8)}" for answer in each["answers"])


def _wrapped(text: str, width: int) -> Iterator[str]:
    for line in text.splitlines():
        plain = printable(line, "\N{REPLACEMENT CHARACTER}")
        yield from textwrap.wrap(plain, max(20, width), subsequent_indent="    ") or [""]


def _cut(text: str, width: int) -> str:
    line, width = one_line(text), max(20, width)
    return line if len(line) <= width else f"{line[: width - 1]}…"
