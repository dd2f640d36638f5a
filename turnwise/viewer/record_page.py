"""A record as a page: read one group at a time, so that memory holds one group and the index."""

import base64
import gzip
import hashlib
import html
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import Any, Self

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
from turnwise.viewer.artefact_values import LARGEST_SHOWN
from turnwise.viewer.page_values import (
    AddBlock,
    GroupEntry,
    OtherEstimator,
    PageContent,
    RunIndex,
    group_values,
)

_FOLDER = Path(__file__).parent / "page"
_TEMPLATE = "template.html"
_STYLE = re.compile(r'<link rel="stylesheet" href="([\w.-]+)">')
_SCRIPT = re.compile(r'<script src="([\w.-]+)"></script>')
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
    """The text of a page around its data."""

    before: str
    """Up to the index."""
    between: str
    """From the index to the blocks: the program, which may start before they are read."""
    after: str


def page_template(title: str, *, live: bool, template: str = _TEMPLATE) -> PageTemplate:
    """The page of this title; only a live one may connect, to its own server."""
    text = _program("'self'" if live else "'none'", template)
    text = text.replace(_TITLE, f"<title>{html.escape(title)}</title>", 1)
    before, between = _INDEX.split(text)
    between, after = _BLOCKS.split(between)
    return PageTemplate(before=before, between=between, after=after)


@cache
def _program(connect: str, template: str) -> str:
    """The template with its styles and scripts in it, and the policy that permits them by their hashes."""
    text = (_FOLDER / template).read_text(encoding="utf-8")
    styles: list[str] = []
    scripts: list[str] = []
    text = _STYLE.sub(_inlined("style", styles), text)
    text = _SCRIPT.sub(_inlined("script", scripts), text)
    policy = _POLICY.format(scripts=" ".join(scripts), styles=" ".join(styles), connect=connect)
    return _META.sub(f'<meta http-equiv="Content-Security-Policy" content="{policy}">', text, count=1)


def _inlined(tag: str, hashes: list[str]) -> Callable[[re.Match[str]], str]:
    def inline(named: re.Match[str]) -> str:
        text = (_FOLDER / named[1]).read_text(encoding="utf-8")
        if found := _ENDS_EARLY.search(text):
            raise ValueError(f"page/{named[1]} holds {found[0]!r}, which would end its element early")
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        hashes.append(f"'sha256-{digest}'")
        return f"<{tag}>{text}</{tag}>"

    return inline


def compressed(value: Any) -> bytes:
    """A value as gzip'd JSON; equal values give equal bytes."""
    return gzip.compress(orjson.dumps(value), compresslevel=6, mtime=0)


class PageFile:
    """A page in the making.

    The index stands before the blocks and is known last, so that blocks wait in a file of their own.
    """

    def __init__(self, out: Path, *, max_bytes: int, template: str = _TEMPLATE) -> None:
        """Begin a page that is to stand at `out`.

        Raises:
            RecordError: it cannot be written there.
        """
        self._out = out
        self._max_bytes = max_bytes
        self._template = template
        self.block_bytes = 0
        try:
            self._blocks = TemporaryFile(dir=out.parent)  # noqa: SIM115
        except OSError as error:
            raise self._unwritable(error) from error

    def add(self, name: str, value: Any) -> None:
        """Add a block.

        Raises:
            RecordError: the disk is full, or the page would become too large.
        """
        element = _element(name, value)
        self.block_bytes += len(element)
        if self.block_bytes > self._max_bytes:
            raise RecordError(
                f"the page would be larger than {self._max_bytes / 1e6:,.0f} MB; show fewer --groups, cut "
                "texts with --max-text, leave out --no-tokens, or permit it with --max-size"
            )
        try:
            self._blocks.write(element)
        except OSError as error:
            raise self._unwritable(error) from error

    def finish(self, index: Mapping[str, Any]) -> int:
        """Put the page where it is to stand; its size in bytes.

        Raises:
            RecordError: the disk is full.
        """
        template = page_template(index["title"], live=False, template=self._template)
        with write_whole(self._out) as unfinished, open(unfinished, "wb", opener=private) as page:
            self._blocks.seek(0)
            page.write(template.before.encode() + _element("index", index))
            page.write(template.between.encode())
            shutil.copyfileobj(self._blocks, page, 1 << 20)
            page.write(template.after.encode())
            return page.tell()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):  # the disk is full, as was said
            self._blocks.close()

    def _unwritable(self, error: OSError) -> RecordError:
        return RecordError(f"cannot write {self._out}: {error.strerror}")


def _element(name: str, value: Any) -> bytes:
    """A block in the page; letters of base64 cannot end its element."""
    data = base64.b64encode(compressed(value))
    return b'<script type="text/plain" id="block-%b">%b</script>\n' % (name.encode(), data)


VERSION = 1


@dataclass(slots=True, kw_only=True)
class IndexBuilder:
    """The index of a page, as it grows by groups."""

    title: str
    source: str
    content: PageContent
    others: tuple[OtherEstimator, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict[str, str])
    generation: int = 0
    entries: list[GroupEntry] = field(default_factory=list[GroupEntry])
    counts: Callable[[CreditedGroup], bool] = field(default_factory=lambda: CountedOnce(()))
    """Whether a group is in the aggregates."""
    summary: Summary = field(default_factory=Summary)
    _names: Counter[str] = field(default_factory=Counter[str])
    """Environments, policies and estimators of the groups, each with its kind before it."""
    _ids: set[str] = field(default_factory=set[str])

    def add(self, credited: CreditedGroup, number: int, add_block: AddBlock) -> None:
        """Take one more group in, whose line has this number; its blocks are given away.

        Raises:
            RecordError: the line has fields that do not fit each other.
        """
        try:
            entry = group_values(credited, number, self.content, self.others, add_block)
            if self.counts(credited):
                self.summary.add(credited)
        except (LookupError, ValueError, TypeError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise RecordError(f"{self.source}, line {number}: cannot be shown: {reason}") from None
        if entry["id"] in self._ids:
            entry["id"] = f"{entry['id']}~{number}"
        self._ids.add(entry["id"])
        self.entries.append(entry)
        self._names[f"env {credited.group.env}"] += 1
        self._names[f"policy {credited.policy}"] += 1
        self._names[f"estimator {credit_text(credited.estimator, credited.estimator_params)}"] += 1

    def index(self, *, cut: list[str], live: bool) -> RunIndex:
        """The index of what came so far."""
        numbers = self.summary.values()
        found = diagnosis_of(numbers)
        return RunIndex(
            version=VERSION,
            title=self.title,
            source=self.source,
            env=self._all("env"),
            policy=self._all("policy"),
            estimator=self._all("estimator"),
            others=[credit_text(other.name, other.params) for other in self.others],
            facts=sorted(self.facts.items()),
            nothing=str(found) if found.is_nothing else None,
            aggregates=numbers,
            cut=cut,
            live=live,
            generation=self.generation,
            groups=self.entries,
        )

    def cut(self) -> list[str]:
        """What is not in the page, in words."""
        content = self.content
        texts = content.cutter.cut
        cut = [f"the middle of {texts:,} texts of more than {content.cutter.max_chars:,} characters"]
        cut = cut if texts else []
        if not content.tokens:
            cut.append("tokens")
        elif content.untold_turns:
            cut.append(f"texts of the tokens of {content.untold_turns:,} turns, whose tokenizer is not known")
        return cut

    def _all(self, kind: str) -> str:
        return " and ".join(
            name.removeprefix(f"{kind} ") for name in self._names if name.startswith(f"{kind} ")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSize:
    """What a page came to."""

    size: int
    """In bytes."""
    groups: int
    rollouts: int
    cut: tuple[str, ...]
    """What is not in it, in words."""


def write_record_page(  # noqa: PLR0913  # what a page can have, by name
    record: Record,
    out: Path,
    content: PageContent,
    *,
    others: Sequence[str] | None = None,
    lines: Sequence[range] | None = None,
    credit: CreditReport | None = None,
    max_bytes: int,
) -> PageSize:
    """Make the page of a record, which stands at `out` once it is whole.

    Args:
        record: the rollout JSONL, or several.
        out: the HTML file.
        content: what the page takes of rollouts.
        others: further estimators; `None`: what suits the recorded one.
        lines: which groups to show, by their numbers from 1; `None`: all.
        credit: the credit report of the record; `None`: there is none.
        max_bytes: how large its blocks may become.

    Raises:
        RecordError: unreadable, malformed, without a group to show, or the page cannot be written.
        CreditError: no such estimator.
    """
    contents = read_contents(record)
    builder = IndexBuilder(
        title=title_of(record),
        source=text_of(str(record)),
        content=content,
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
            if not builder.entries:
                builder.others = other_estimators(credited.estimator, others)
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
    """What a page of the record is called: `ENV/NAME` of a run's folder, or the file's name."""
    first, *others = paths_of(record)
    parts = first.absolute().parent.parts[-2:] if first.name == RECORD else (first.name,)
    return text_of("/".join(parts) + (f" and {len(others)} more" if others else ""))


def text_of(path: Path | str) -> str:
    """A path as text that any page can hold: its bytes may be no UTF-8."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def facts_of(contents: Contents) -> dict[str, str]:
    """What the experiments of a record's groups are made of, by name."""
    known: dict[str, dict[str, None]] = {}
    for facts in contents.origins.values():
        for name, value in facts.items():
            known.setdefault(name, {})[value] = None
    return {name: " and ".join(values) for name, values in known.items()}


def other_estimators(recorded: str, names: Sequence[str] | None) -> tuple[OtherEstimator, ...]:
    """The estimators beside the recorded one; by default the one that looks at scores alone.

    Raises:
        CreditError: no such estimator, or it compares all groups of a step.
    """
    if names is None:
        names = ("grpo",) if recorded == "turn_return" else ()
    for name in names:
        describe(name).refuse_alone()
    return tuple(OtherEstimator(name=name, params=recorded_params(name)) for name in names)
