"""`turnwise export`: a record as the rows that a trainer would get, in one of the views."""

from collections import Counter
from pathlib import Path

import click
import jsonlines
import orjson

from environments.record.recorder import read_groups
from environments.wire.payloads import check_columns
from environments.wire.views import VIEWS, Columns
from tools.errors import RecordError, WireError

_VIEW = click.Choice(list(VIEWS))


@click.command(name="export")
@click.argument("record", type=click.Path(path_type=Path))
@click.option("--view", type=_VIEW, help="How credit is shown.", show_default="token_advantages")
@click.option("--encoding", type=_VIEW, hidden=True, help="What --view was called.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The file to write.")
def command(record: Path, view: str | None, encoding: str | None, out: Path) -> None:
    """Write the groups of RECORD as a trainer would see them, one Atropos group a line.

    Groups that failed or carry no credit are left out, as `serve` does.
    """
    if out.exists() and out.stat().st_size:
        raise RecordError(f"{out} exists; export writes a new file, choose another path")
    view = view or encoding or "token_advantages"
    unfinished = out.with_name(out.name + ".part")
    try:
        statuses, lines = _write(record, view, unfinished)
        unfinished.replace(out)
    except OSError as error:
        raise RecordError(f"cannot write {out}: {error.strerror}") from error
    finally:
        unfinished.unlink(missing_ok=True)
    left_out = ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()) if status != "ok")
    click.echo(
        f"{statuses['ok']} groups as {lines} lines of {view}"
        + (f"; left out: {left_out}" if left_out else ""),
        err=True,
    )


def _write(record: Path, view: str, out: Path) -> tuple[Counter[str], int]:
    """Write the groups; how many there were by status, and the lines written."""
    statuses: Counter[str] = Counter()
    lines = 0
    with (
        out.open("wb") as file,
        jsonlines.Writer(file, dumps=orjson.dumps) as writer,  # pyright: ignore[reportCallIssue]  # its attrs fields are private
    ):
        for number, credited in enumerate(read_groups(record), start=1):
            statuses[credited.status] += 1
            for columns in VIEWS[view](credited) if credited.status == "ok" else []:
                _check(columns, view, f"{record}, line {number}")
                writer.write(columns)
                lines += 1
    return statuses, lines


def _check(columns: Columns, view: str, where: str) -> None:
    if view == "list_scores":
        return  # lists are what people want to see there, and no trainer takes them
    try:
        check_columns(columns)
    except WireError as error:
        raise RecordError(f"{where}: {error}") from error
