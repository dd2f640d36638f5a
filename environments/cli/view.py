"""`turnwise view`: a record as one HTML file that opens from disk."""

from pathlib import Path
from typing import Any

import click

from environments.cli.credit_options import load_code
from environments.record.run_folder import RECORD, record_at
from environments.run.console_streams import outlived_console
from environments.viewer.page_texts import TextCutter
from environments.viewer.record_page import PageSize, write_record_page
from environments.viewer.token_texts import TokenTexts
from environments.viewer.turn_values import PageContent
from tools.errors import ConfigError

_MB = 1_000_000
_DIGITS = 15


@click.command(name="view")
@click.argument("record", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="The HTML file; else beside the record.")
@click.option(
    "--estimator",
    "estimators",
    multiple=True,
    metavar="NAME",
    help="Show its advantages beside the recorded ones; may be given again.  [default: grpo, where "
    "turn_return was recorded]",
)
@click.option("--tokenizer", metavar="NAME", help="A folder or Hugging Face name, for the texts of tokens.")
@click.option("--no-tokens", is_flag=True, help="Leave out tokens and their log-probabilities.")
@click.option("--groups", metavar="LINES", help="Only these lines of the record, such as 1-20,35.")
@click.option(
    "--max-text",
    type=click.IntRange(min=100),
    default=100_000,
    show_default=True,
    help="Characters of one text beyond which its middle is cut.",
)
@click.option(
    "--max-size",
    type=click.IntRange(min=1),
    default=500,
    show_default=True,
    help="MB that the page may become.",
)
@click.option(
    "--load",
    metavar="FILE",
    help="A Python file or module that registers an estimator.",
    callback=load_code,
    expose_value=False,
    is_eager=True,
)
def command(record: Path, out: Path | None, **options: Any) -> None:
    """Make one HTML file of RECORD, a rollout JSONL or a run, to be looked at from disk."""
    record = record_at(record)
    has_tokens = not options["no_tokens"]
    content = PageContent(
        cutter=TextCutter(max_chars=options["max_text"]),
        tokens=has_tokens,
        token_texts=TokenTexts.of(options["tokenizer"]) if has_tokens else None,
    )
    page = page_of(record) if out is None else out
    size = write_record_page(
        record,
        page,
        content,
        others=options["estimators"] or None,
        lines=_lines(options["groups"]),
        max_bytes=options["max_size"] * _MB,
    )
    with outlived_console():  # the work is done, whoever reads of it
        click.echo(page)
        click.echo(_in_words(size), err=True)


def page_of(record: Path) -> Path:
    """Where the page of a record stands when nobody says it."""
    return record.with_name("view.html") if record.name == RECORD else record.with_suffix(".html")


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


def _in_words(size: PageSize) -> str:
    cut = f"; not in it: {', '.join(size.cut)}" if size.cut else ""
    return f"{size.size / _MB:,.2f} MB, {size.groups:,} groups, {size.rollouts:,} rollouts{cut}"
