"""The tables and the figure of learning in README and docs, made from `learning_table.json`, which it keeps.

`python -m tests.benchmarks.learning_docs` writes them.
"""

import fcntl
import json
import math
import re
from itertools import pairwise
from pathlib import Path
from statistics import median

from turnwise.lab.learning.curve_plot import curve_plot

RESULTS = Path(__file__).with_name("learning_table.json")
ROOT = Path(__file__).resolve().parents[2]
FIGURE, PAGES = ROOT / "docs" / "noisy_turns.svg", (ROOT / "README.md", ROOT / "docs" / "learning.md")
TITLES = {
    "gamma=1": "γ = 1 (default)",
    "gamma=0.5": "γ = .5",
    "gamma=0": "γ = 0",
    "scalar": "scalar (`rloo`)",
    "grpo": "`grpo`",
    "control": "control",
}
SHORT = ("gamma=1", "gamma=0.5", "gamma=0", "scalar")
"""The arms that README shows, by their medians alone."""


TASKS = (
    *(f"{turns} turns, noise {noise:g}" for turns in (16, 8) for noise in (1, 0.5, 0)),
    "stop",
    "chain",
    "delayed",
)
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
    steps = stored()["steps"]
    return _table(
        ["task", *(TITLES[arm] for arm in SHORT), "γ = 1 / scalar", "γ = 0 / scalar"],
        (
            [game, *(_number(middle(steps[game][arm])) for arm in SHORT), *_ratios(steps[game])]
            for game in TASKS
        ),
    )


def long_table():
    steps = stored()["steps"]
    return _table(
        ["task", *TITLES.values()],
        ([game, *(_cell(steps[game][arm]) for arm in TITLES)] for game in TASKS),
    )


def rates_table():
    rates = stored()["rates"]
    arms = [arm for arm in TITLES if arm != "control"]
    return _table(
        ["task", *(TITLES[arm] for arm in arms)],
        ([game, *(f"{rates[game][arm]:g}" for arm in arms)] for game in TASKS),
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


TABLES = {"short table": short_table, "all seeds": long_table, "rates": rates_table, "real path": real_table}
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


if __name__ == "__main__":
    FIGURE.write_text(figure())
    for each in PAGES:
        each.write_text(filled(each.read_text()))
