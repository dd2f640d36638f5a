"""Draw the ledger of one group as an SVG: siblings side by side, a row per act.

python -m scripts.ledger_picture RECORD ITEM OUT.svg
"""

import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path

from environments.credit.ledger import TurnLedger, ledger
from environments.record.recorder import read_groups
from environments.trajectory import CreditedGroup, Turn

WIDTH, HEIGHT, HEADER, CHARS = 224, 62, 40, 29
GREY, BLUE, ORANGE = "#6b7280", "#1d4ed8", "#b45309"


def draw(credited: CreditedGroup) -> str:
    trajectories = credited.group.trajectories
    acts = max(len(trajectory.acts) for trajectory in trajectories)
    width, height = WIDTH * len(trajectories) + 8, HEADER + HEIGHT * acts + 8
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for column, (trajectory, entries) in enumerate(zip(trajectories, ledger(credited), strict=True)):
        x, outcome = 8 + WIDTH * column, trajectory.rewards and trajectory.rewards.outcome
        title = f"sibling {trajectory.sibling} · score {trajectory.score:.3g}"
        lines.append(_text(x + 4, 18, title, "#111827", bold=True))
        lines.append(_text(x + 4, 33, "" if outcome is None else f"outcome {outcome:.3g}", GREY))
        cells = [pair for pair in zip(trajectory.turns, entries, strict=True) if pair[0].kind != "summary"]
        for row, (turn, entry) in enumerate(cells):
            lines.extend(_cell(x, HEADER + HEIGHT * row, turn, entry))
    return "\n".join([*lines, "</svg>\n"])


def _cell(x: int, y: int, turn: Turn, entry: TurnLedger) -> Iterator[str]:
    strength = min(abs(entry.advantage), 1.0) * 0.28
    colour = BLUE if entry.advantage >= 0 else ORANGE
    yield f'<rect x="{x}" y="{y}" width="{WIDTH - 8}" height="{HEIGHT - 6}" rx="4" fill="#f3f4f6"/>'
    yield (
        f'<rect x="{x}" y="{y}" width="{WIDTH - 8}" height="{HEIGHT - 6}" rx="4"'
        f' fill="{colour}" fill-opacity="{strength:.2f}"/>'
    )
    calls = " ".join(f"{call.name}({call.arguments})" for call in turn.message.tool_calls)
    text = " ".join(f"{turn.message.content} {calls}".split())
    yield _text(x + 6, y + 16, text if len(text) <= CHARS else text[: CHARS - 1] + "…", "#111827")
    reward = "not scored" if entry.reward is None else f"reward {entry.reward:.3g}"
    follows = "" if entry.follows is None else f" + {entry.follows:.3g} follows"
    yield _text(x + 6, y + 32, reward + follows, GREY)
    baselines = [term.baseline for term in entry.terms if term.baseline is not None]
    compared = f"baseline {baselines[0]:.3g} → " if len(entry.terms) == len(baselines) == 1 else "advantage "
    yield _text(x + 6, y + 48, f"{compared}{entry.advantage:+.3g}", colour, bold=True)


def _text(x: int, y: int, text: str, colour: str, *, bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x}" y="{y}" fill="{colour}"{weight}>{escape(text)}</text>'


if __name__ == "__main__":
    record, item, out = sys.argv[1:]
    found = next(each for each in read_groups(Path(record)) if each.group.item_id == item)
    Path(out).write_text(draw(found), encoding="utf-8")
