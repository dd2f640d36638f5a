"""`turnwise runs`: lists the runs of a folder, newest first."""

import io
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from environments.record.run_folder import RUNS
from environments.run.run_list import ListedRun, list_runs
from tools.errors import UsageError
from tools.plain_text import decimals

_FINGERPRINT_DIGITS = 8
_WIDEST = 2_000
_TO_MINUTES = len("2026-11-22 19:34")


@click.command(name="runs")
@click.argument("folder", type=click.Path(path_type=Path), required=False)
@click.option("--json", "as_json", is_flag=True, help="As a JSON list.")
def command(folder: Path | None, as_json: bool) -> None:
    """List the runs below FOLDER, by default runs/, newest first.

    Groups are finished / planned ones. A dash is an unknown value; problems of a run's files are in its
    line.
    """
    below = RUNS if folder is None else folder
    if not below.is_dir():
        if folder is not None:
            raise UsageError(f"no folder {folder}")
        click.echo("[]" if as_json else f"no runs in {below}/")
        return
    runs = list_runs(below)
    if as_json:
        click.echo(json.dumps([asdict(run) for run in runs], indent=2))
    elif not runs:
        click.echo(f"no runs in {below}/")
    else:
        show_runs(runs)


def show_runs(runs: Sequence[ListedRun]) -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):  # a folder's name may be no text of the console
        sys.stdout.reconfigure(errors="backslashreplace")  # pyright: ignore[reportUnknownMemberType]  # TextIO
    console = Console(highlight=False)
    evaluated = any(run.pass_at_1 is not None for run in runs)
    table = Table(box=None, pad_edge=False)
    numbers = ("groups", "failed", "score", *(["pass@1"] if evaluated else []))
    for title in ("run", "started", "state", *numbers, "of", "policy", ""):
        justify = "right" if title in numbers else "left"
        table.add_column(title, justify=justify, no_wrap=title not in ("policy", ""))
    for run in runs:
        done = f"{'-' if run.done is None else run.done}{'' if run.planned is None else f'/{run.planned}'}"
        cells = [f"{run.env}/{run.name}", run.started[:_TO_MINUTES], run.state, done, run.failed]
        cells += [decimals(run.score), *([decimals(run.pass_at_1)] if evaluated else [])]
        cells += [run.fingerprint and run.fingerprint[:_FINGERPRINT_DIGITS], run.policy, run.note]
        table.add_row(*(Text("-" if each is None else str(each)) for each in cells))
    if not console.is_terminal:  # lines of a pipe are whole, however long
        console.width = console.measure(table, options=console.options.update(width=_WIDEST)).maximum
    console.print(table)
