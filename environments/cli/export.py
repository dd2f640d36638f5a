"""`turnwise export`: a record as the rows that a trainer would get, in one of the views."""

from collections import Counter
from pathlib import Path
from typing import get_args

import click
import jsonlines
import orjson

from environments.record.private_file import private
from environments.record.recorder import read_groups
from environments.run.console_streams import outlived_console
from environments.trajectory import CreditedGroup
from environments.wire.columns import Columns, columns_of, list_scores
from environments.wire.training_rows import check_rows
from environments.wire.views import TOKENS_PER_TURN, VIEWS, PrefixWeighting
from tools.errors import RecordError, WireError

_VIEW = click.Choice([*VIEWS, "list_scores"])


@click.command(name="export")
@click.argument("record", type=click.Path(path_type=Path))
@click.option("--view", type=_VIEW, help="How credit is shown.", show_default="token_advantages")
@click.option("--encoding", type=_VIEW, hidden=True, help="What --view was called.")
@click.option(
    "--score-divisor",
    "divisor",
    type=click.IntRange(min=1),
    default=TOKENS_PER_TURN,
    show_default=True,
    help="turn_rows, prefix_rows: what advantage times tokens is divided by.",
)
@click.option(
    "--prefix-weighting",
    "weighting",
    type=click.Choice(get_args(PrefixWeighting)),
    default="once",
    show_default=True,
    help="prefix_rows: whether what a turn gets from all its rows adds up to its advantage.",
)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The file to write.")
def command(
    record: Path,
    view: str | None,
    encoding: str | None,
    divisor: int,
    weighting: PrefixWeighting,
    out: Path,
) -> None:
    """Write the groups of RECORD as a trainer would see them, one Atropos group a line.

    Groups that failed or carry no credit are left out, as `serve` does.
    """
    if out.exists() and out.stat().st_size:
        raise RecordError(f"{out} exists; export writes a new file, choose another path")
    view = view or encoding or "token_advantages"
    unfinished = out.with_name(out.name + ".part")
    try:
        statuses, lines = _write(record, view, divisor, weighting, unfinished)
        unfinished.replace(out)
    except OSError as error:
        raise RecordError(f"cannot write {out}: {error.strerror}") from error
    finally:
        unfinished.unlink(missing_ok=True)
    left_out = ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()) if status != "ok")
    with outlived_console():  # the work is done, whoever reads of it
        click.echo(
            f"{statuses['ok']} groups as {lines} lines of {view}"
            + (f"; left out: {left_out}" if left_out else ""),
            err=True,
        )


def _write(
    record: Path, view: str, divisor: int, weighting: PrefixWeighting, out: Path
) -> tuple[Counter[str], int]:
    """Write the groups; how many there were by status, and the lines written."""
    statuses: Counter[str] = Counter()
    lines = 0
    with (
        open(out, "wb", opener=private) as file,  # `Path.open` takes no opener
        jsonlines.Writer(file, dumps=orjson.dumps) as writer,  # pyright: ignore[reportCallIssue]  # its attrs fields are private
    ):
        for number, credited in enumerate(read_groups(record), start=1):
            statuses[credited.status] += 1
            for columns in _shown(credited, view, divisor, weighting, f"{record}, line {number}"):
                writer.write(columns)
                lines += 1
    return statuses, lines


def _shown(
    credited: CreditedGroup, view: str, divisor: int, weighting: PrefixWeighting, where: str
) -> list[Columns]:
    """The lines of a group in a view: none when it has no credit."""
    if credited.status != "ok":
        return []
    if view == "list_scores":
        return [list_scores(credited)]  # lists are what people want to see there, and no trainer takes them
    groups = VIEWS[view](credited, divisor, weighting)
    try:
        for group in groups:
            check_rows(group)
    except WireError as error:
        raise RecordError(f"{where}: {error}") from error
    return [columns_of(group) for group in groups]
