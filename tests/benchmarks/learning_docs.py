"""The tables and the figure of learning in the docs, made from `learning_table.json`, which it keeps.

`python -m tests.benchmarks.learning_docs` writes them.
"""

import fcntl
import json
import math
import re
from html import escape
from itertools import pairwise
from pathlib import Path
from statistics import median

RESULTS = Path(__file__).with_name("learning_table.json")
ROOT = Path(__file__).resolve().parents[2]
FIGURE, PAGE = ROOT / "docs" / "noisy_turns.svg", ROOT / "docs" / "credit.md"
TITLES = {
    "gamma=1": "γ = 1 (default)",
    "gamma=0.5": "γ = .5",
    "gamma=0": "γ = 0",
    "scalar": "scalar (`rloo`)",
    "grpo": "`grpo`",
    "control": "control",
}
SHORT = ("gamma=1", "gamma=0.5", "gamma=0", "scalar")
"""Arms of the short table."""


TASKS = (
    *(f"{turns} turns, noise {noise:g}" for turns in (16, 8) for noise in (1, 0.5, 0)),
    "stop",
    "chain",
    "delayed",
)
LARGE_STEP_TASKS = ("8 turns, noise 1", "chain")
CURVE = TASKS[0]
"""The task whose curves are kept, for the figure."""
TARGET, CAP = 0.8, 150
"""P(right key) and steps, where a run ends."""
REAL_PATH = "real path"


def stored():
    return json.loads(RESULTS.read_text())


def store(part, name, value):
    """Put a value into the file; commands that run beside this one put theirs."""
    with RESULTS.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        values = json.load(file)
        values.setdefault(part, {})[name] = value
        file.seek(0)
        file.truncate()
        file.write(_written(values))


def _written(values):
    """JSON with a line for each value of a part."""
    parts = (
        f'"{part}": {{\n'
        + ",\n".join(f' "{name}": {json.dumps(value)}' for name, value in of.items())
        + "\n}"
        for part, of in values.items()
    )
    return "{" + ",\n".join(parts) + "}\n"


def middle(steps):
    """The median; infinite where most seeds did not arrive."""
    return median(math.inf if each is None else each for each in steps)


def short_table():
    kept = stored()
    steps, equal = kept["steps"], kept["steps at the scalar's rate"]
    return _table(
        [
            "task",
            *(TITLES[arm] for arm in SHORT),
            "γ = 1 / scalar",
            "γ = 0 / scalar",
            "γ = 1 at the scalar's rate",
        ],
        (
            [
                game,
                *(_short_cell(steps[game][arm]) for arm in SHORT),
                *_ratios(steps[game]),
                _short_cell(equal[game]),
            ]
            for game in TASKS
        ),
    )


def large_step(task, rollouts):
    return f"{task}, {rollouts} rollouts a step"


def step_table():
    """By rollouts a step: those of the short table, and larger ones."""
    steps = stored()["steps"]
    rows = [
        (task, str(rollouts), steps[task if rollouts == 8 else large_step(task, rollouts)])
        for task in LARGE_STEP_TASKS
        for rollouts in (8, 64, 512)
    ]
    return _table(
        ["task", "rollouts a step", *(TITLES[arm] for arm in SHORT), "γ = 1 / scalar", "γ = 0 / scalar"],
        (
            [task, rollouts, *(_short_cell(of[arm]) for arm in SHORT), *_ratios(of)]
            for task, rollouts, of in rows
        ),
    )


def real_table():
    shares, rates = stored()["shares"][REAL_PATH], stored()["rates"][REAL_PATH]
    return _table(
        ["credit", "learning rate", "share of right letters, by seed", "median"],
        (
            [
                TITLES[arm],
                f"{rates[arm]:g}",
                " ".join(f"{each:.2f}" for each in shares[arm]),
                f"{median(shares[arm]):.2f}",
            ]
            for arm in shares
        ),
    )


def figure():
    kept = stored()
    arms = [arm for arm in TITLES if arm in SHORT or arm == "control"]
    curves = {
        TITLES[arm].replace("`", ""): [_each_step(each) for each in kept["curves"][CURVE][arm]]
        for arm in arms
    }
    legend = {
        TITLES[arm].replace(
            "`", ""
        ): f"Adam {kept['rates'][CURVE][arm]:g}; {_cell(kept['steps'][CURVE][arm])}"
        for arm in arms
    }
    title = f"{CURVE}: a transformer, ten seeds and their median"
    return curve_plot(curves, legend, title=title, value="P(right key), exact", target=TARGET)


def filled(page):
    """The text of a page with its tables as they are now; each stands between comments that name it."""
    return _PART.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n{found[4]}", page)


TABLES = {"short table": short_table, "step table": step_table, "real path": real_table}
_PART = re.compile(r"(<!-- (.+?) -->)\n(.*?)(<!-- /\2 -->)", re.DOTALL)


def _each_step(curve):
    """A value for each step, of one for every second."""
    return [*(value for one, two in pairwise(curve) for value in (one, (one + two) / 2)), curve[-1]]


def _cell(steps):
    arrived = [each for each in steps if each is not None]
    if not arrived:
        return "-"
    extent = f"{_number(middle(steps))} ({min(arrived)} to {max(arrived)})"
    return extent if len(arrived) == len(steps) else f"{extent}, {len(arrived)} of {len(steps)}"


def _short_cell(steps):
    """The median, and how many seeds arrived where not all did."""
    arrived = sum(each is not None for each in steps)
    text = _number(middle(steps))
    return text if arrived == len(steps) else f"{text} ({arrived} of {len(steps)})"


def _ratios(steps):
    """Of the medians; at most so much where most runs of the scalar did not arrive."""
    scalar = middle(steps["scalar"])
    ratios = [middle(steps[arm]) / min(scalar, CAP) for arm in ("gamma=1", "gamma=0")]
    return [f"{'< ' if scalar > CAP else ''}{ratio:.2f}" if ratio < math.inf else "∞" for ratio in ratios]


def _number(steps):
    return "-" if math.isinf(steps) else f"{steps:g}"


def _table(titles, rows):
    lines = (f"| {' | '.join(line)} |" for line in (titles, *rows))
    return "\n".join([next(lines), "|---" * len(titles) + "|", *lines])


_WIDTH, _HEIGHT = 760, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 20, 44, 52
_COLORS = ("a", "b", "c", "d", "e", "f")
_STYLE = """
.ground{fill:#fff}.text{fill:#222;font:13px system-ui,sans-serif}.title{font-size:15px;font-weight:600}
.axis{stroke:#777;fill:none}.grid{stroke:#ddd}.target{stroke:#777;stroke-dasharray:5 4}
.line{fill:none;stroke-linejoin:round}.seed{stroke-width:1;opacity:.45}.median{stroke-width:3}
.a{stroke:#0b62c4}.b{stroke:#c2410c}.c{stroke:#6b7280}.d{stroke:#15803d}.e{stroke:#7e22ce}.f{stroke:#a16207}
@media (prefers-color-scheme:dark){.ground{fill:#0d1117}.text{fill:#e6edf3}.grid{stroke:#30363d}
.axis,.target{stroke:#9aa4af}.a{stroke:#58a6ff}.b{stroke:#ff9d5c}.c{stroke:#aab2bd}.d{stroke:#4ade80}
.e{stroke:#c792ea}.f{stroke:#e3b341}}
"""


def curve_plot(curves, legend, *, title, value, target):
    """An SVG: every seed thin, medians thick; a run that ended counts on with its last value."""
    steps = max(1, *(len(each) - 1 for seeds in curves.values() for each in seeds))
    drawn = [*_axes(steps, value), f'<path class="target" d="M{_LEFT} {_y(target):.1f}H{_WIDTH - _RIGHT}"/>']
    colors = {name: _COLORS[index % len(_COLORS)] for index, name in enumerate(curves)}
    for name, seeds in curves.items():
        drawn += [_line(each, steps, f"line seed {colors[name]}") for each in seeds]
    for name, seeds in curves.items():
        drawn.append(_line(_medians(seeds), steps, f"line median {colors[name]}"))
    for index, (name, color) in enumerate(colors.items()):
        y = _HEIGHT + 6 + 20 * index
        drawn.append(f'<path class="line median {color}" d="M{_LEFT} {y - 4}h26"/>')
        drawn.append(_text(_LEFT + 34, y, f"{name}: {legend[name]}"))
    height = _HEIGHT + 20 * len(curves)
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="{escape(title)}">',
        f"<style>{_STYLE}</style>",
        f'<rect class="ground" width="{_WIDTH}" height="{height}"/>',
        _text(_LEFT, 26, title, "text title"),
        *drawn,
        "</svg>",
        "",
    ])  # fmt: skip


def _medians(seeds):
    """At each step over all seeds, as far as half of them went."""
    lengths = sorted(map(len, seeds))
    steps = range(lengths[len(lengths) // 2])
    return [median(values[min(step, len(values) - 1)] for values in seeds) for step in steps]


def _x(step, steps):
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * step / steps


def _y(value):
    return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - min(1.0, max(0.0, value)))


def _axes(steps, value):
    lines = []
    for tenths in range(0, 11, 2):
        y = _y(tenths / 10)
        lines.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>')
        lines.append(_text(_LEFT - 8, y + 4, f"{tenths / 10:g}", anchor="end"))
    round_numbers = [digit * 10**power for power in range(9) for digit in (1, 2, 5)]
    every = next(each for each in round_numbers if steps / each <= 8)
    for step in range(0, steps + 1, every):
        lines.append(_text(_x(step, steps), _HEIGHT - _BOTTOM + 20, str(step), anchor="middle"))
    bottom = _HEIGHT - _BOTTOM
    lines.append(f'<path class="axis" d="M{_LEFT} {_TOP}V{bottom}H{_WIDTH - _RIGHT}"/>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    lines.append(_text(middle, _HEIGHT - 12, "steps of the policy", anchor="middle"))
    lines.append(_text(16, (_TOP + bottom) / 2, value, anchor="middle", turned=-90))
    return lines


def _line(values, steps, style):
    points = " ".join(f"{_x(step, steps):.1f},{_y(value):.1f}" for step, value in enumerate(values))
    return f'<polyline class="{style}" points="{points}"/>'


def _text(x, y, text, style="text", *, anchor="start", turned=0):
    turn = f' transform="rotate({turned:g} {x:.1f} {y:.1f})"' if turned else ""
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turn}>{escape(text)}</text>'


if __name__ == "__main__":
    FIGURE.write_text(figure())
    PAGE.write_text(filled(PAGE.read_text()))
