"""`turnwise export`: a record as the lines that a trainer reads, in one of the views."""

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from environments.record.group_line import decode_group
from environments.record.private_file import folder_for, write_whole
from environments.record.recorder import Record, numbered_lines, records_at
from environments.record.text_exports.line_file import LineFile
from environments.record.text_exports.text_views import TEXT_VIEWS, openai_chat
from environments.run.console_streams import outlived_console
from environments.trajectory import CreditedGroup
from environments.wire.columns import MADE_UP, Columns, columns_in, list_scores
from environments.wire.views import TOKENS_PER_TURN, VIEWS, PrefixWeighting
from tools.errors import CreditError, RecordError, UsageError, WireError
from turnwise.cli.main import terminated_as_interrupted

if TYPE_CHECKING:
    from environments.record.tables.arrow_rows import Per

Lines = Callable[[CreditedGroup, Counter[str]], Iterable[dict[str, Any]]]

_OPTION_OF: Mapping[str, tuple[str, ...]] = {
    "score_divisor": ("turn_rows", "prefix_rows"),
    "prefix_weighting": ("prefix_rows",),
    "min_score": ("openai",),
    "min_advantage": ("openai",),
    "per": ("parquet",),
}
"""The views that each option is for."""
_WITHOUT_ROWS = {"prompt_response", "openai"}
"""Views that need no token ids."""

PARQUET = "parquet"
_VIEW = click.Choice([*VIEWS, "list_scores", *TEXT_VIEWS, PARQUET])


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
@click.option("--min-score", type=float, help="openai: train only rollouts of this score or more.")
@click.option("--min-advantage", type=float, help="openai: train only turns of this advantage or more.")
@click.option(
    "--per",
    type=click.Choice(["group", "rollout", "turn"]),
    show_default="turn",
    help="parquet: what a row is.",
)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The file to write.")
def command(records: Sequence[Path], out: Path, **options: Any) -> None:
    """Write the groups of RECORD, or of several, as a trainer reads them, as JSON lines or parquet.

    \b
    Views of tokens, a group a line. Groups without credit are left out.
      token_advantages  rows with an advantage per token
      binary_masks      the same with masks of 0 and 1
      turn_rows         each turn a row of its own, scored with its advantage
      prefix_rows       each turn a row with all turns before it
      list_scores       every column, for people

    \b
    Views of text:
      prompt_response   a line per turn: what the model saw, what it said, its
                        rewards, return and advantage (TRL, datasets)
      openai            a line per row: chat fine-tuning, weight 0 where a
                        message is not trained
      preference        a line per prompt: the best and the worst answer that
                        siblings gave to the very same prompt (DPO)

    Groups that failed are left out.

    \b
    A table of all groups, with its types (datasets, DuckDB, polars, pandas):
      parquet           a row per turn, or --per rollout or group
    """  # noqa: D301  # click reads the backspace
    record = records_at(records)
    if out.exists() and out.stat().st_size:
        raise RecordError(f"{out} exists; export writes a new file, choose another path")
    view = options["view"] or "token_advantages"
    given = _given(view, options)
    with terminated_as_interrupted(), _new_file(out) as unfinished:
        text = (
            _table(record, unfinished, **given) if view == PARQUET else _text(record, unfinished, view, given)
        )
    with outlived_console():  # the work is done, even if its output is closed
        click.echo(text, err=True)


@contextmanager
def _new_file(out: Path) -> Generator[Path]:
    """Where to write what stands at `out` once all of it is written.

    Raises:
        RecordError: it cannot be written.
    """
    with folder_for(out), write_whole(out) as unfinished:
        yield unfinished


def _text(record: Record, unfinished: Path, view: str, given: Mapping[str, Any]) -> str:
    """Write the lines of a view; returns lines to print about them."""
    shown = _shown(view, given)
    skipped = ("failed",) if view in TEXT_VIEWS else ("failed", "no_credit")
    groups, left_out, notes = 0, Counter[str](), Counter[str]()
    with LineFile(unfinished) as file:
        for path, number, line in numbered_lines(record, warn=True):
            credited = decode_group(line, path, number, rows=view not in _WITHOUT_ROWS)
            if credited.status in skipped:
                left_out[credited.status] += 1
                continue
            groups += 1
            try:
                for each in shown(credited, notes):
                    file.write(each)
            except (WireError, CreditError, ValueError) as error:
                raise RecordError(f"{path}, line {number}: {error}") from error
        if view in TEXT_VIEWS:
            file.put_early()
    parts = [f"{groups} groups as {file.lines} lines of {view}"]
    if left_out:
        named = ", ".join(f"{count} {status}" for status, count in sorted(left_out.items()))
        parts.append(f"left out: {named}")
    if not file.lines:
        parts.append("the file is empty")
    return "; ".join([*parts, *(f"{count} {note}" for note, count in sorted(notes.items()) if count)])


def _table(record: Record, unfinished: Path, per: "Per" = "turn") -> str:
    """Write a table; returns lines to print about it."""
    from environments.record.tables.parquet_file import write_parquet  # noqa: PLC0415  # slow

    return f"{write_parquet(record, per, unfinished)} rows of a {per} each"


def _given(view: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a user gave beside the view.

    Raises:
        UsageError: one that the view has no use for.
    """
    given = {name: options[name] for name in _OPTION_OF if options[name] is not None}
    for name in given:
        if view not in _OPTION_OF[name]:
            option, views = name.replace("_", "-"), " or ".join(_OPTION_OF[name])
            raise UsageError(f"--{option} is for --view {views}, not {view}")
    return given


def _shown(view: str, given: Mapping[str, Any]) -> Lines:
    """How a group's lines are made."""
    if view in TEXT_VIEWS:
        return partial(openai_chat, **given) if given else TEXT_VIEWS[view]
    scaling = (given.get("score_divisor", TOKENS_PER_TURN), given.get("prefix_weighting", "once"))
    return partial(_rows, view, scaling)


def _rows(
    view: str, scaling: tuple[int, PrefixWeighting], credited: CreditedGroup, notes: Counter[str]
) -> list[Columns]:
    """The lines of a group in a view of tokens."""
    notes[MADE_UP] += sum(not each.exact for each in credited.group.trajectories)
    if view == "list_scores":
        return [list_scores(credited)]  # lists are what people want to see there, and no trainer takes them
    return columns_in(view, credited, *scaling)
