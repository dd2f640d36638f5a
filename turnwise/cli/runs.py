"""`turnwise runs`: lists the runs of a folder, newest first."""

import json
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from environments.record.run_folder import RUNS
from environments.run.console_streams import robust_console
from environments.run.run_list import ListedRun, list_runs
from tools.errors import UsageError

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
    with robust_console():
        if as_json:
            click.echo(json.dumps([run.values() for run in runs], indent=2))
        elif not runs:
            click.echo(f"no runs in {below}/")
        else:
            show_runs(Console(highlight=False), runs)


def show_runs(console: Console, runs: Sequence[ListedRun]) -> None:
    evaluated = any(run.pass_at_1 is not None for run in runs)
    table = Table(box=None, pad_edge=False)
    for title in ("run", "started", "state", "groups", "failed", "score"):
        is_number = title in ("groups", "failed", "score")
        table.add_column(title, justify="right" if is_number else "left", no_wrap=True)
    if evaluated:
        table.add_column("pass@1", justify="right", no_wrap=True)
    for title in ("of", "policy", ""):
        table.add_column(title, no_wrap=title == "of")
    for run in runs:
        done = _format(run.done) + ("" if run.planned is None else f"/{run.planned}")
        cells = [f"{run.env}/{run.name}", run.started[:_TO_MINUTES], run.state, done]
        cells += [_format(run.failed), _format(run.score), *([_format(run.pass_at_1)] if evaluated else [])]
        cells += [(run.fingerprint or "-")[:_FINGERPRINT_DIGITS], run.policy or "-", run.note]
        table.add_row(*map(Text, cells))
    if not console.is_terminal:  # lines of a pipe are whole, however long
        console.width = console.measure(table, options=console.options.update(width=_WIDEST)).maximum
    console.print(table)


def _format(number: float | None) -> str:
    if number is None:
        return "-"
    return str(number) if isinstance(number, int) else f"{number:.3f}"
