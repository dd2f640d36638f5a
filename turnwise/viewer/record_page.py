"""The page of a record, read one group at a time: memory holds one group and the index."""

import base64
import gzip
import hashlib
import html
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Literal, Self

import orjson

from environments.credit import describe, recorded_params
from environments.record.diagnosis import diagnosis_of
from environments.record.group_line import decode_group
from environments.record.origin import Contents, credit_text
from environments.record.private_file import folder_for, private, write_whole
from environments.record.recorder import Record, iterate_lines, paths_of, read_contents, with_contents
from environments.record.run_folder import RECORD
from environments.record.totals import Summary
from environments.run.run_list import CountedOnce
from environments.trajectory import CreditedGroup
from tools.errors import RecordError
from turnwise.lab.credit_report.report import CreditReport
from turnwise.viewer.page_values import (
    LARGEST_SHOWN,
    AddBlock,
    GroupEntry,
    OtherEstimator,
    PageContent,
    RunIndex,
    group_values,
)

Kind = Literal["record", "runs"]
_FOLDER = Path(__file__).parent / "page"
_STYLE = re.compile(r'<link rel="stylesheet" href="([\w.-]+)">')
_SCRIPT = re.compile(r'<script src="([\w.-]+)"(?: data-page="(\w+)")?></script>\n')
_META = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
_INDEX = re.compile(r"<!-- index\b.*?-->")
_BLOCKS = re.compile(r"<!-- blocks\b.*?-->")
_TITLE = "<title>Turnwise</title>"
_ENDS_EARLY = re.compile(r"</(?:script|style)|<!--", re.IGNORECASE)
_POLICY = (
    "default-src 'none'; script-src {scripts}; style-src {styles}; img-src data:; connect-src {connect}; "
    "base-uri 'none'; form-action 'none'"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageTemplate:
    """The text of a page around its data: before the index, up to the blocks, and after them."""

    before: str
    between: str
    """The program: it may start before the browser has read the blocks."""
    after: str


def page_template(title: str, *, live: bool, kind: Kind = "record") -> PageTemplate:
    """Make the template; only a live page may connect, to its own server."""
    text = _program("'self'" if live else "'none'", kind)
    text = text.replace(_TITLE, f"<title>{html.escape(title)}</title>", 1)
    before, between = _INDEX.split(text)
    between, after = _BLOCKS.split(between)
    return PageTemplate(before=before, between=between, after=after)


@cache
def _program(connect: str, kind: Kind) -> str:
    """Inline styles and scripts, and permit them by their hashes in the policy."""
    styles: list[str] = []
    scripts: list[str] = []

    def inline(tag: str, name: str, hashes: list[str]) -> str:
        text = (_FOLDER / name).read_text(encoding="utf-8")
        if found := _ENDS_EARLY.search(text):
            raise ValueError(f"page/{name} holds {found[0]!r}, which would end its element early")
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        hashes.append(f"'sha256-{digest}'")
        return f"<{tag}>{text}</{tag}>"

    text = (_FOLDER / "template.html").read_text(encoding="utf-8")
    text = _STYLE.sub(lambda link: inline("style", link[1], styles), text)
    text = _SCRIPT.sub(
        lambda link: inline("script", link[1], scripts) if link[2] in (None, kind) else "", text
    )
    policy = _POLICY.format(scripts=" ".join(scripts), styles=" ".join(styles), connect=connect)
    return _META.sub(f'<meta http-equiv="Content-Security-Policy" content="{policy}">', text, count=1)


def compress(value: Any) -> bytes:
    """Return a value as gzip'd JSON; equal values give equal bytes."""
    return gzip.compress(orjson.dumps(value), compresslevel=4, mtime=0)  # 6: 2 % smaller, half slower


class PageFile:
    """Writes a page. Blocks wait in a temporary file, since the index before them is known last."""

    def __init__(self, out: Path, *, max_bytes: int, kind: Kind = "record") -> None:
        self._out = out
        self._max_bytes = max_bytes
        self._kind: Kind = kind
        self._block_bytes = 0
        try:
            self._blocks = TemporaryFile(dir=out.parent)  # noqa: SIM115
        except OSError as error:
            raise self._unwritable(error) from error

    def add(self, name: str, value: Any) -> None:
        element = _element(name, value)
        self._block_bytes += len(element)
        if self._block_bytes > self._max_bytes:
            number = int(name[1:].partition("r")[0])  # `g7`, or `g7r0p0`
            raise RecordError(
                f"the page would be larger than {self._max_bytes / 1e6:,.0f} MB at group {number:,}; show "
                f"--groups 1-{max(1, number - 1)}, cut texts with --max-text, leave tokens out with "
                "--no-tokens, permit it with --max-size, or read the record without a file with --serve"
            )
        try:
            self._blocks.write(element)
        except OSError as error:
            raise self._unwritable(error) from error

    def finish(self, index: Mapping[str, Any]) -> int:
        """Write the page and return its size in bytes."""
        template = page_template(index["title"], live=False, kind=self._kind)
        with write_whole(self._out) as unfinished, open(unfinished, "wb", opener=private) as page:
            self._blocks.seek(0)
            page.write(template.before.encode() + _element("index", index))
            page.write(template.between.encode())
            shutil.copyfileobj(self._blocks, page, 1 << 20)
            page.write(template.after.encode())
            return page.tell()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # the disk is full, which `add` has raised
            self._blocks.close()

    def _unwritable(self, error: OSError) -> RecordError:
        return RecordError(f"cannot write {self._out}: {error.strerror}")


def _element(name: str, value: Any) -> bytes:
    data = base64.b64encode(compress(value))
    return b'<script type="text/plain" id="block-%b">%b</script>\n' % (name.encode(), data)


@dataclass(slots=True, kw_only=True)
class IndexBuilder:
    title: str
    source: str
    content: PageContent
    others: Sequence[str] | None = None
    """Estimators for comparison; None for grpo, if the record has turn_return."""
    facts: Mapping[str, str] = field(default_factory=dict[str, str])
    generation: int = 0
    entries: list[GroupEntry] = field(default_factory=list[GroupEntry])
    counts: CountedOnce = field(default_factory=lambda: CountedOnce(()))
    summary: Summary = field(default_factory=Summary)
    _others: tuple[OtherEstimator, ...] = ()
    _names: dict[tuple[str, str], None] = field(default_factory=dict[tuple[str, str], None])
    _ids: set[str] = field(default_factory=set[str])

    def add(self, credited: CreditedGroup, number: int, add_block: AddBlock) -> None:
        if not self.entries:
            self._others = _find_estimators(credited, self.others)
        try:
            entry = group_values(credited, number, self.content, self._others, add_block)
            if self.counts(credited):
                self.summary.add(credited)
        except (LookupError, ValueError, TypeError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise RecordError(f"{self.source}, line {number}: cannot be shown: {reason}") from None
        if entry["id"] in self._ids:
            entry["id"] = f"{entry['id']}~{number}"
        self._ids.add(entry["id"])
        self.entries.append(entry)
        estimator = credit_text(credited.estimator, credited.estimator_params)
        names = {"env": credited.group.env, "policy": credited.policy, "estimator": estimator}
        self._names.update(dict.fromkeys(names.items()))

    def index(self, *, cut: list[str], live: bool) -> RunIndex:
        def join(kind: str) -> str:
            return " and ".join(name for of, name in self._names if of == kind)

        numbers = self.summary.values()
        found = diagnosis_of(numbers)
        return RunIndex(
            title=self.title,
            source=self.source,
            env=join("env"),
            policy=join("policy"),
            estimator=join("estimator"),
            others=[credit_text(other.name, other.params) for other in self._others],
            facts=sorted(self.facts.items()),
            diagnosis=str(found) if found.causes else None,
            aggregates=numbers,
            cut=cut,
            live=live,
            generation=self.generation,
            groups=self.entries,
        )

    def cut(self) -> list[str]:
        content, texts, cut = self.content, self.content.cutter.cut, list[str]()
        if texts:
            cut.append(f"the middle of {texts:,} texts of more than {content.cutter.max_chars:,} characters")
        if not content.tokens:
            cut.append("tokens")
        elif turns := content.turns_without_texts:
            cut.append(f"texts of the tokens of {turns:,} turns, whose tokenizer is not known")
        return cut


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSize:
    size: int
    groups: int
    rollouts: int
    cut: tuple[str, ...]


def write_record_page(  # noqa: PLR0913  # options of the command
    record: Record,
    out: Path,
    content: PageContent,
    *,
    others: Sequence[str] | None = None,
    lines: Sequence[range] | None = None,
    credit: CreditReport | None = None,
    max_bytes: int,
) -> PageSize:
    """Write the page of a record to `out`, atomically.

    `others` are estimators for comparison; None for grpo, if the record has turn_return. `lines` are numbers
    of the groups to show, from 1.

    Raises:
        RecordError: if the record is unreadable, malformed or without a group to show, or `out` not writable.
        CreditError: if an estimator for comparison is unknown.
    """
    contents = read_contents(record)
    builder = IndexBuilder(
        title=title_of(record),
        source=text_of(str(record)),
        content=content,
        others=others,
        facts=facts_of(contents),
        counts=CountedOnce(contents.finished),
    )
    left_out = 0
    with folder_for(out), PageFile(out, max_bytes=max_bytes) as page:
        for number, (path, at, line) in enumerate(iterate_lines(record), start=1):
            credited = with_contents(decode_group(line, path, at), path, max_bytes=LARGEST_SHOWN)
            if lines is not None and not any(number in each for each in lines):
                left_out += 1
                continue
            builder.add(credited, number, page.add)
        if not builder.entries:
            raise RecordError(f"{record} has no group to show" + (" in --groups" if left_out else ""))
        cut = [*([f"{left_out:,} groups"] if left_out else []), *builder.cut()]
        index = builder.index(cut=cut, live=False)
        if credit is not None:
            index["credit"] = credit
        size = page.finish(index)
    rollouts = sum(len(entry["rollouts"]) for entry in builder.entries)
    return PageSize(size=size, groups=len(builder.entries), rollouts=rollouts, cut=tuple(cut))


def title_of(record: Record) -> str:
    """Return the title of a record's page: `ENV/NAME` of a run's folder, or the file's name."""
    first, *others = paths_of(record)
    parts = first.absolute().parent.parts[-2:] if first.name == RECORD else (first.name,)
    return text_of("/".join(parts) + (f" and {len(others)} more" if others else ""))


def text_of(path: Path | str) -> str:
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def facts_of(contents: Contents) -> dict[str, str]:
    known: dict[str, dict[str, None]] = {}
    for facts in contents.origins.values():
        for name, value in facts.items():
            known.setdefault(name, {})[value] = None
    return {name: " and ".join(values) for name, values in known.items()}


def _find_estimators(credited: CreditedGroup, names: Sequence[str] | None) -> tuple[OtherEstimator, ...]:
    if names is None:
        names = ("grpo",) if credited.estimator == "turn_return" else ()
    for name in names:
        describe(name).refuse_alone()
    others = (OtherEstimator(name=name, params=recorded_params(name)) for name in names)
    own = credit_text(credited.estimator, credited.estimator_params)
    return tuple(each for each in others if credit_text(each.name, each.params) != own)
