"""`turnwise export`: writes a record in one of the views."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import click

from environments.record.group_line import decode_group
from environments.record.private_file import folder_for, write_whole
from environments.record.prompt_response import LineFile, prompt_response
from environments.record.recorder import Record, iterate_lines, records_at
from environments.run.console_streams import robust_console
from environments.wire.training_rows import MADE_UP
from environments.wire.views import TOKENS_PER_TURN, VIEWS, PrefixWeighting, columns_in, list_scores
from tools.errors import CreditError, RecordError, UsageError, WireError
from turnwise.cli.main import interrupt_on_sigterm

_OPTION_OF: Mapping[str, tuple[str, ...]] = {
    "score_divisor": ("turn_rows", "prefix_rows"),
    "prefix_weighting": ("prefix_rows",),
}
TEXT, PARQUET = "prompt_response", "parquet"
_VIEW = click.Choice([*VIEWS, "list_scores", TEXT, PARQUET])


@click.command(name="export")
@click.argument("records", nargs=-1, required=True, metavar="RECORD...", type=click.Path(path_type=Path))
@click.option("--view", type=_VIEW, metavar="VIEW", help="One of these.", show_default="token_advantages")
@click.option(
    "--score-divisor",
    type=click.IntRange(min=1),
    show_default=str(TOKENS_PER_TURN),
    help="turn_rows, prefix_rows: what advantage times tokens is divided by.",
)
@click.option(
    "--prefix-weighting",
    type=click.Choice(get_args(PrefixWeighting)),
    show_default="once",
    help="prefix_rows: whether what a turn gets from all its rows adds up to its advantage.",
)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The file to write.")
def command(records: Sequence[Path], out: Path, **options: Any) -> None:
    """Write the groups of RECORD, or of several, for trainers, as JSON lines or parquet.

    \b
    Views of tokens, a group a line. Groups without credit are left out.
      token_advantages  rows with an advantage per token
      binary_masks      the same with masks of 0 and 1
      turn_rows         a row per turn, scored with its advantage
      prefix_rows       each turn a row with all turns before it
      list_scores       every column, for people

    \b
    A view of text. Groups that failed are left out.
      prompt_response   a line per turn: the model's prompt and reply, with
                        rewards, return and advantage (TRL, datasets)

    \b
    A table of all groups, with its types (datasets, DuckDB, polars, pandas):
      parquet           a row per turn
    """  # noqa: D301  # click reads the backspace
    record = records_at(records)
    if out.exists() and out.stat().st_size:
        raise RecordError(f"{out} exists; export writes a new file, choose another path")
    view = options["view"] or "token_advantages"
    given = {name: options[name] for name in _OPTION_OF if options[name] is not None}
    for name in given:
        if view not in _OPTION_OF[name]:
            option, views = name.replace("_", "-"), " or ".join(_OPTION_OF[name])
            raise UsageError(f"--{option} is for --view {views}, not {view}")
    with interrupt_on_sigterm(), folder_for(out), write_whole(out) as unfinished:
        if view == PARQUET:
            from environments.record.table import write_parquet  # noqa: PLC0415  # slow

            text = f"{write_parquet(record, unfinished)} rows of a turn each"
        else:
            text = _write_lines(record, unfinished, view, given)
    with robust_console():
        click.echo(text, err=True)


def _write_lines(record: Record, unfinished: Path, view: str, given: Mapping[str, Any]) -> str:
    skipped = ("failed",) if view == TEXT else ("failed", "no_credit", "alone")
    scaling = (given.get("score_divisor", TOKENS_PER_TURN), given.get("prefix_weighting", "once"))
    groups, left_out, notes = 0, Counter[str](), Counter[str]()
    with LineFile(unfinished) as file:
        for path, number, line in iterate_lines(record, warn=True):
            credited = decode_group(line, path, number, rows=view != TEXT)
            if credited.status in skipped:
                left_out[credited.status] += 1
                continue
            groups += 1
            try:
                if view == TEXT:
                    for each in prompt_response(credited, notes):
                        file.write(each)
                    continue
                notes[MADE_UP] += sum(not each.exact for each in credited.group.trajectories)
                is_list = view == "list_scores"
                for each in [list_scores(credited)] if is_list else columns_in(view, credited, *scaling):
                    file.write(each)
            except (WireError, CreditError, ValueError) as error:
                raise RecordError(f"{path}, line {number}: {error}") from error
        if view == TEXT:
            file.put_early()
    parts = [f"{groups} groups as {file.lines} lines of {view}"]
    if left_out:
        named = ", ".join(f"{count} {status}" for status, count in sorted(left_out.items()))
        parts.append(f"left out: {named}")
    if not file.lines:
        parts.append("the file is empty")
    return "; ".join([*parts, *(f"{count} {note}" for note, count in sorted(notes.items()) if count)])
