"""Write the tables of runs.csv into README.md, and draw the curves.

PYTHONPATH=..:../learn_trl python table.py runs.csv
"""

import sys
from pathlib import Path
from statistics import fmean, stdev

from curves import WIDTH, drawn
from learn import ARMS, NOISY, PLAIN, RATES, SEARCH, WHOLE, last_success, read_rows

T_90 = {2: 6.314, 3: 2.920, 4: 2.353, 5: 2.132}
"""Student's quantile for a two-sided interval of 90 %, by the number of seeds."""
TASKS = {
    "quiz, noise 1": (NOISY, 16),
    "quiz, noise 1, 64 rollouts a step": (NOISY, 64),
    "quiz, noise 0": (PLAIN, 16),
    "quiz, noise 1, whole conversations": (WHOLE, 16),
    "higher_lower": (SEARCH, 16),
}
DRAWN = ("quiz, noise 1", "quiz, noise 0", "higher_lower")


def runs_of(rows, task, rollouts, arm, role="fresh"):
    wanted = (*task, rollouts, arm, role)
    kinds = ("game", "memory", "noise", "rollouts", "arm", "role")
    found = [row for row in rows if tuple(row[kind] for kind in kinds) == tuple(map(str, wanted))]
    return sorted(found, key=lambda row: int(row["seed"]))


def interval(values):
    """Return the mean and half the width of its 90 % t-interval."""
    return fmean(values), T_90[len(values)] * stdev(values) / len(values) ** 0.5


def table(rows, task, rollouts):
    lines = [
        "| credit | rate | last ten steps, mean and 90 % interval | by seed | arrived, by seed | CPU s a step |"
    ]
    lines.append("|---|---|---|---|---|---|")
    for arm in ARMS:
        runs = runs_of(rows, task, rollouts, arm)
        if len(runs) < 2:
            continue
        values = [last_success(run) for run in runs]
        mean, half = interval(values)
        seeds = " ".join(f"{value:.2f}" for value in values)
        arrived = " ".join(run["arrived"] or "–" for run in runs)
        cpu_s = fmean(float(run["cpu_s"]) / len(run["success"].split()) for run in runs)
        rate = float(runs[0]["rate"])
        lines.append(
            f"| {arm} | {rate:g} | {mean:.3f} ({mean - half:.3f} to {mean + half:.3f}) | {seeds} | {arrived} | {cpu_s:.2f} |"
        )
    return "\n".join(lines)


def tuning_table(rows, task):
    lines = ["| credit | rate: mean of the last ten steps of both tuning seeds |", "|---|---|"]
    for arm in ARMS:
        found = {}
        for run in runs_of(rows, task, 16, arm, "tuning"):
            found.setdefault(float(run["rate"]), []).append(last_success(run))
        if len(found) < len(RATES):
            continue
        shown = ", ".join(f"{rate:g}: {fmean(values):.3f}" for rate, values in sorted(found.items()))
        lines.append(f"| {arm} | {shown} |")
    return "\n".join(lines)


def picture(rows):
    """The mean over the seeds of each arm, a panel per task."""
    panels = []
    for name in DRAWN:
        curves = {}
        for arm in ARMS:
            if runs := runs_of(rows, *TASKS[name], arm):
                successes = [[float(each) for each in run["success"].split()] for run in runs]
                curves[arm, float(runs[0]["rate"])] = [list(map(fmean, zip(*successes, strict=True)))]
        title = f"{name}: success, mean of the seeds and of five steps"
        if curves:
            panels.append(drawn(curves, title).replace("<svg ", f'<svg x="{len(panels) * WIDTH}" ', 1))
    size = f'viewBox="0 0 {WIDTH * len(panels)} 260"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{"".join(panels)}</svg>\n'


def results(rows):
    tables = {name: table(rows, *of) for name, of in TASKS.items()}
    tables |= {f"Tuning, {name}": tuning_table(rows, TASKS[name][0]) for name in DRAWN}
    parts = [f"**{name}**\n\n{text}" for name, text in tables.items() if text.count("\n") > 1]
    return "\n\n".join([f"{len(rows)} of 183 planned runs are in `runs.csv`.", *parts])


def main():
    rows, page = read_rows(Path(sys.argv[1])), Path(__file__).with_name("README.md")
    before, mark, _ = page.read_text().partition("<!-- results -->\n")
    page.write_text(f"{before}{mark}\n{results(rows)}\n")
    page.with_name("curves.svg").write_text(picture(rows))


if __name__ == "__main__":
    main()
