"""The matrix of trainers in docs/trainers.md: what the tests of adapters measured, and on which versions.

python -m tests.environments.trainers.matrix FOLDER [--check | --print]

Tests call `report`; with the folder of all their reports this writes the table, checks the committed one, or
prints what it would be.
"""

import json
import os
import sys
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path

FOLDER_VARIABLE = "TURNWISE_TRAINER_REPORTS"
PAGE = Path(__file__).resolve().parents[3] / "docs" / "trainers.md"
START, END = "<!-- trainer matrix -->\n", "<!-- end of trainer matrix -->\n"
HEADER = """\
| trainer | version | path | tested on | cosine | norm ratio | refused |
|---|---|---|---|---|---|---|
"""
NOTHING = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one test found out about one path of a trainer."""

    trainer: str
    version: str
    path: str
    """What carries the credit, in a few words: `rollout_func`, `GeneratorOutput.rewards`."""
    tested: str = "its own code"
    """Which of the trainer's code ran, and what of it was stubbed."""
    cosine: float | None = None
    """Of the trainer's gradient and Σ A ∇log π."""
    ratio: float | None = None
    """Of their norms, the loss's known constant taken out."""
    refused: tuple[str, ...] = ()
    """Settings that the adapter refuses, as a user writes them."""


def report(**found):
    """A line of `Report`'s fields in the folder that `TURNWISE_TRAINER_REPORTS` names, if it names one.

    Tests of one path report as often as they like: the row has the worst cosine and ratio, and all that is
    refused. They must agree on version and on what was tested.
    """
    line = json.dumps(asdict(Report(**found)))
    if folder := os.environ.get(FOLDER_VARIABLE):
        Path(folder).mkdir(parents=True, exist_ok=True)
        with (Path(folder) / f"{os.getpid()}.jsonl").open("a") as file:
            file.write(f"{line}\n")


def reports_in(folder):
    files = sorted(Path(folder).glob("*.jsonl"))
    return [Report(**json.loads(line)) for file in files for line in file.read_text().splitlines()]


def table(reports):
    """A row for each path of each trainer, in the order of their names."""
    paths = defaultdict(list)
    for each in reports:
        paths[each.trainer.lower(), each.path].append(each)
    return HEADER + "".join(_row(found) for _, found in sorted(paths.items()))


def page_with(page, rows):
    """The page's text with the table between its markers."""
    before, rest = page.split(START)
    _, after = rest.split(END)
    return f"{before}{START}{rows}{END}{after}"


def _row(found):
    cosine = min((each.cosine for each in found if each.cosine is not None), default=None)
    ratios = [each.ratio for each in found if each.ratio is not None]
    ratio = max(ratios, key=lambda each: abs(each - 1.0), default=None)
    refused = sorted({f"`{setting}`" for each in found for setting in each.refused})
    cells = [
        *(_agreed(found, field) for field in ("trainer", "version", "path", "tested")),
        *(NOTHING if number is None else f"{number:.4f}" for number in (cosine, ratio)),
        ", ".join(refused) or NOTHING,
    ]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def _agreed(found, field):
    values = sorted({getattr(each, field) for each in found})
    if len(values) > 1:
        sys.exit(f"{found[0].trainer}, {found[0].path}: tests do not agree on {field}: {values}")
    return values[0]


def main(folder, *flags):
    reports = reports_in(folder)
    if not reports:
        sys.exit(f"{folder}: no reports; run the adapters' tests with {FOLDER_VARIABLE}={folder}")
    page = PAGE.read_text()
    expected = page_with(page, table(reports))
    if flags == ("--print",):
        sys.stdout.write(table(reports))
    elif flags == ("--check",):
        if page != expected:
            sys.exit(f"docs/trainers.md is not what the tests found; it would be:\n{table(reports)}")
    else:
        PAGE.write_text(expected)


if __name__ == "__main__":
    main(*sys.argv[1:])
