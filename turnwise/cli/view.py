"""`turnwise view`: shows a record as an HTML file, as a live page, or as text in the terminal."""

import asyncio
import gzip
import os
import sys
import webbrowser
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import click

from environments.record.recorder import Record, Records, groups_of, paths_of, records_at
from environments.record.run_folder import RECORD, RUNS, RunFolder
from environments.run.console_streams import robust_console
from environments.run.run_list import ListedRun, list_runs
from tools.errors import ConfigError
from tools.plain_text import count_noun
from turnwise.cli.credit_options import load_option
from turnwise.cli.runs import show_runs
from turnwise.lab.credit_report.report import credit_report
from turnwise.viewer.page_server import LiveRecord, serve_page
from turnwise.viewer.page_values import PageContent, TextCutter, TokenTexts
from turnwise.viewer.record_page import write_record_page
from turnwise.viewer.runs_page import LiveRuns, write_runs_page
from turnwise.viewer.text_view import item_lines, run_lines

_MB = 1_000_000
_DIGITS = 15
_PAGE_CHARS = 100_000
_TERMINAL_CHARS = 4_000


@click.command(name="view")
@click.argument("records", nargs=-1, metavar="[RECORD]...", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="The HTML file; else beside the record.")
@click.option("--demo", is_flag=True, help="Show a record that comes with Turnwise, as demo.html here.")
@click.option("--text", "as_text", is_flag=True, help="Print its groups in the terminal instead.")
@click.option("--item", metavar="ID", help="--text: print the rollouts of this item turn by turn.")
@click.option("--open", "opens", is_flag=True, help="Open it in a browser, where there is a display.")
@click.option("--serve", is_flag=True, help="Serve it on loopback instead, and follow RECORD as it grows.")
@click.option("--port", type=click.IntRange(0, 65535), help="--serve: where.  [default: a free one]")
@click.option(
    "--estimator",
    "estimators",
    multiple=True,
    metavar="NAME",
    help="Show its advantages beside the recorded ones; may be given again.  [default: grpo, where "
    "turn_return was recorded]",
)
@click.option("--credit", is_flag=True, help="Add the report of `turnwise credit RECORD` to the file.")
@click.option("--tokenizer", metavar="NAME", help="A folder or Hugging Face name, for the texts of tokens.")
@click.option("--no-tokens", is_flag=True, help="Leave out tokens and their log-probabilities.")
@click.option("--groups", metavar="LINES", help="Only these lines of the record, such as 1-20,35.")
@click.option(
    "--max-text",
    type=click.IntRange(min=100),
    show_default="100,000, --text: 4,000",
    help="Characters of one text beyond which its middle is cut.",
)
@click.option(
    "--max-size", type=click.IntRange(min=1), default=500, show_default=True, help="MB that it may become."
)
@load_option
def command(records: Sequence[Path], **options: Any) -> None:
    """Show RECORD (a rollout JSONL, a run, a folder of runs) as an HTML file from disk, or as --text.

    Siblings are aligned by turn, each turn with its credit ledger: reward, later rewards, peers, advantage.
    Text of models is escaped on the page and in the terminal. Several RECORDs are shown as one; ENV/NAME is
    all shards of a run.
    """
    _check(records, options)
    if len(records) == 1 and records[0].is_dir():
        is_run = any(os.path.lexists(RunFolder(place / records[0]).record) for place in (Path(), RUNS))
        if runs := [] if is_run else list_runs(records[0]):
            _show_runs(records[0], runs, options)
            return
    if options["as_text"]:
        record, item, max_chars = records_at(records), options["item"], options["max_text"] or _TERMINAL_CHARS
        lines = run_lines(record) if item is None else item_lines(record, item, max_chars=max_chars)
        click.echo_via_pager(f"{line}\n" for line in lines)
        return
    with ExitStack() as stack:
        if options["demo"]:
            record, page = stack.enter_context(demo_record()), Path("demo.html")
        else:
            record = records_at(records)
            several, first = isinstance(record, Records), paths_of(record)[0]
            first = first.parent if several and first.name == RECORD else first
            page = first.with_name("view.html") if first.name == RECORD else first.with_suffix(".html")
        token_texts = None if options["no_tokens"] else TokenTexts.of(options["tokenizer"])

        def content() -> PageContent:
            cutter = TextCutter(max_chars=options["max_text"] or _PAGE_CHARS)
            return PageContent(cutter=cutter, tokens=not options["no_tokens"], token_texts=token_texts)

        if options["serve"]:
            if isinstance(record, Records):
                raise ConfigError(f"--serve follows one record, and not {record}")
            live = LiveRecord(record, content, options["estimators"] or None)
            asyncio.run(serve_page(live, options["port"] or 0, lambda url: _announce(url, options)))
        else:
            _write(record, options["out"] or page, content(), options)


def _check(records: Sequence[Path], options: Mapping[str, Any]) -> None:
    if (not records) != options["demo"]:
        raise ConfigError("give a RECORD to look at, or --demo, and not both")
    if options["serve"]:
        given = [name for name in ("out", "groups", "credit") if options[name]]
        if given:
            raise ConfigError(f"--{given[0]} is of a file, and --serve writes none")
    elif options["port"] is not None:
        raise ConfigError("--port is for --serve")
    if options["item"] is not None and not options["as_text"]:
        raise ConfigError("--item is for --text")


def _show_runs(folder: Path, runs: Sequence[ListedRun], options: Mapping[str, Any]) -> None:
    one_run = ("item", "groups", "estimators", "credit", "tokenizer", "no_tokens", "max_text")
    if given := [name for name in one_run if options[name]]:
        raise ConfigError(f"--{given[0].replace('_', '-')} is for one run; {folder} has {len(runs)}")
    if options["as_text"]:
        show_runs(runs)
        return
    if options["serve"]:
        asyncio.run(serve_page(LiveRuns(folder), options["port"] or 0, lambda url: _announce(url, options)))
        return
    page = options["out"] or folder / "runs.html"
    size = write_runs_page(folder, runs, page)
    _report(page, f"{size / _MB:,.2f} MB, {len(runs):,} runs", options)


def _write(record: Record, page: Path, content: PageContent, options: Mapping[str, Any]) -> None:
    if page.exists() and any(map(page.samefile, paths_of(record))):
        raise ConfigError(f"{page} is the record: give --out another file")
    size = write_record_page(
        record,
        page,
        content,
        others=options["estimators"] or None,
        lines=_lines(options["groups"]),
        credit=credit_report(groups_of(record)) if options["credit"] else None,
        max_bytes=options["max_size"] * _MB,
    )
    groups, rollouts = count_noun(size.groups, "group"), count_noun(size.rollouts, "rollout")
    cut = f"; not in it: {', '.join(size.cut)}" if size.cut else ""
    _report(page, f"{size.size / _MB:,.2f} MB, {groups}, {rollouts}{cut}", options)


def _report(page: Path, facts: str, options: Mapping[str, Any]) -> None:
    with robust_console():  # the page is written, even if stdout is closed
        click.echo(page)
        click.echo(facts, err=True)
        if options["opens"]:
            _open(page.resolve().as_uri())


def _announce(url: str, options: Mapping[str, Any]) -> None:
    with robust_console():
        click.echo(f"{url} shows what is recorded as it grows; ^C ends")
        if options["opens"]:
            _open(url)


def _open(url: str) -> None:
    """Open a graphical browser, since a text browser would use the terminal."""
    has_display = sys.platform == "darwin" or {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys()
    if not has_display or not webbrowser.open(url):
        click.echo("no browser can be opened here", err=True)


def _lines(text: str | None) -> tuple[range, ...] | None:
    if text is None:
        return None
    lines: list[range] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or len(first + last) > _DIGITS:
            raise ConfigError(f"--groups takes lines such as 1-20,35, not {text!r:.100}")
        lines.append(range(int(first), int(last or first) + 1))
    return tuple(lines)


DEMO: Final = Path(__file__).parents[1] / "viewer" / "demo" / "demo.jsonl.gz"
"""The bundled record, made by `scripts/demo_record.py`."""


@contextmanager
def demo_record() -> Generator[Path]:
    with TemporaryDirectory(prefix="turnwise-") as folder:
        record = Path(folder, "demo.jsonl")
        record.write_bytes(gzip.decompress(DEMO.read_bytes()))
        yield record
