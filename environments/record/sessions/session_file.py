"""`import`: logged sessions, one JSON object per line, become credited groups in a new record.

The file is read twice, first to find groups, so that memory holds one group and 500 bytes per session.
"""

import codecs
import hashlib
import json
import os
from array import array
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast

from environments.policy.rendering.chatml import ChatMLRenderer
from environments.record.origin import RunOrigin
from environments.record.recorder import Recorder
from environments.record.sessions.logged_session import Scale, Session, SessionError, read_session
from environments.record.sessions.verifiers_trace import is_trace, read_traces
from environments.record.totals import Summary
from environments.rollout.items.item_json import item_for_record, item_hash, item_id, json_text
from environments.rollout.rows import RowBuilder
from environments.trajectory import (
    Completion,
    CreditedGroup,
    Failure,
    Message,
    TokenRow,
    Trajectory,
    TrajectoryGroup,
    Turn,
)
from tools.calls import ToolSpec
from tools.errors import DatasetError
from tools.json_input import JsonError, read_exact_json
from tools.plain_text import is_utf8

MAX_LINE_BYTES = 64 * 1024 * 1024
MAX_SIBLINGS = 1024
"""Further sessions with the same opening form more groups, each an epoch of the item."""
_SHOWN_LINES = 5
_GZIP = b"\x1f\x8b"
LoggedSession = tuple[int, Session]
"""The number of its line, and the session."""


class SessionFile:
    def __init__(self, path: Path, file: BinaryIO, scale: Scale) -> None:
        self.sessions = self.turns = self.votes = self.outcomes = 0
        self._path, self._file, self._scale = path, file, scale
        self._before = _identity(file)
        self._openings: dict[tuple[str, str], _Opening] = {}
        self._ids: dict[bytes, int] = {}
        self.digest = self._read()

    def groups(self) -> Iterator[tuple[str, int, list[LoggedSession]]]:
        """Yield item id, epoch and sessions of each group. Many sessions of one item are several groups."""
        epochs = Counter[str]()
        for (identity, _), opening in self._openings.items():
            places, parts = opening.places, -(-len(opening.places) // MAX_SIBLINGS)
            # Of nearly equal size, so that no session is left alone.
            bounds = [len(places) * part // parts for part in range(parts + 1)]
            for start, end in pairwise(bounds):
                yield identity, epochs[identity], [self._at(*place) for place in places[start:end]]
                epochs[identity] += 1
        if _identity(self._file) != self._before:
            self._refuse_change()

    def _read(self) -> str:
        hashed = hashlib.sha256()
        problem, refused = "", array("Q")
        for line, offset, content in self._lines(hashed.update):
            try:
                for index, session in enumerate(_read(content, self._scale)):
                    self._add(session, (offset, line, index))
            except (SessionError, DatasetError) as error:
                problem = problem or str(error)
                refused.append(line)
        if refused:
            others, is_cut = refused[1:], len(refused) > _SHOWN_LINES + 1
            shown = ", ".join(map(str, others[:_SHOWN_LINES])) + ", …" * is_cut
            more = f"; refused, too, {len(others)} more: {shown}" if others else ""
            raise DatasetError(f"{self._path}, line {refused[0]}: {problem}{more}")
        if not self._openings:
            raise DatasetError(f"{self._path} has no sessions; give one JSON object a line")
        return hashed.hexdigest()

    def _add(self, session: Session, place: tuple[int, int, int]) -> None:
        line = place[1]
        if session.session_id is not None:
            before = self._ids.setdefault(_short(session.session_id), line)
            if before != line:
                raise SessionError(f"the id {session.session_id!r:.100} is that of line {before}, too")
        item = item_of(session)
        digest = _short(json_text(item))
        identity = item_id(item) if session.item_id is None else session.item_id
        opening = self._openings.setdefault((identity, session.group), _Opening(digest=digest, line=line))
        if opening.digest != digest:
            raise SessionError(
                f"the item_id {identity!r:.100} is that of line {opening.line}, which begins otherwise; "
                f"sessions of one item have equal openings and tools: without item_id they are grouped by "
                f"those"
            )
        opening.places.append(place)
        self.sessions += 1
        self.turns += len(session.turns)
        self.votes += sum(vote is not None for vote in session.rewards.turns or ())
        self.outcomes += session.rewards.outcome is not None

    def _lines(self, also: Callable[[bytes], None]) -> Iterator[tuple[int, int, bytes]]:
        line = offset = 0
        while content := self._file.readline(MAX_LINE_BYTES + 1):
            line += 1
            if len(content) > MAX_LINE_BYTES:
                most = f"{MAX_LINE_BYTES >> 20} MiB"
                raise DatasetError(f"{self._path}, line {line}: over {most}; give one session a line")
            if line == 1 and content.startswith(_GZIP):
                raise DatasetError(f"{self._path} is compressed; give the file that gunzip makes of it")
            also(content)
            if content.strip():
                yield line, offset, content
            offset += len(content)

    def _at(self, offset: int, line: int, index: int) -> LoggedSession:
        self._file.seek(offset)
        content = self._file.readline(MAX_LINE_BYTES)
        try:
            return line, _read(content, self._scale)[index]
        except (SessionError, IndexError):
            self._refuse_change()

    def _refuse_change(self) -> NoReturn:
        raise DatasetError(f"{self._path} was changed while it was imported; nothing was written")


@contextmanager
def open_sessions(path: Path, scale: Scale) -> Generator[SessionFile]:
    if str(path) == "-":
        raise DatasetError("sessions are read twice: give a file, not - (standard input)")
    try:
        # Opening a pipe would wait for its writer.
        if path.exists() and not path.is_file():
            raise DatasetError(f"{path} is not a plain file; sessions are read twice")
        with path.open("rb") as file:
            yield SessionFile(path, file, scale)
    except OSError as error:
        raise DatasetError(f"cannot read {path}: {error.strerror or error}") from None


def item_of(session: Session) -> dict[str, Any]:
    if session.item is not None:
        return dict(session.item)
    prompt: dict[str, Any] = {"prompt": [message.to_openai() for message in session.prompt]}
    return prompt | ({"tools": [tool.to_openai() for tool in session.tools]} if session.tools else {})


@dataclass(slots=True, kw_only=True)
class _Opening:
    digest: bytes
    line: int
    places: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    """(offset, line, index in the line) of each session."""


def _read(line: bytes, scale: Scale) -> list[Session]:
    try:
        value = read_exact_json(line.removeprefix(codecs.BOM_UTF8).decode())
    except UnicodeDecodeError:
        raise SessionError("not UTF-8 text") from None
    except JsonError as error:
        raise SessionError(f"not valid JSON: {error}; expected one JSON object a line") from None
    if b"\\u" in line and not is_utf8(json.dumps(value, ensure_ascii=False)):
        raise SessionError("half of a surrogate pair in a text, which no UTF-8 file holds")
    if is_trace(value):
        return read_traces(cast("dict[str, Any]", value), scale)
    return [read_session(value, scale)]


def _short(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _identity(file: BinaryIO) -> tuple[int, int]:
    now = os.fstat(file.fileno())
    return now.st_size, now.st_mtime_ns


def with_row(
    prompt: tuple[Message, ...], turns: Sequence[Turn], tools: Sequence[ToolSpec], renderer: ChatMLRenderer
) -> tuple[tuple[Turn, ...], tuple[TokenRow, ...]]:
    """Return the turns, each with its span in a single row of tokens counted by our tokenizer."""
    builder = RowBuilder()
    spanned: list[Turn] = []
    sampled: tuple[int, ...] = ()
    for turn in turns:
        before = spanned[-1].messages[1:] if spanned else ()
        goes_on = bool(spanned) and spanned[-1].context is None and turn.context is None
        if goes_on:
            seen = renderer.extend(sampled, before, tools)
        else:
            so_far = Trajectory(item_id="", prompt=prompt, turns=(*spanned, turn), rows=())
            seen = renderer.prompt_ids(so_far.thread_until(turn.index)[: -len(turn.messages)], tools)
        sampled = renderer.completion_ids(turn.message)
        completion = Completion(
            message=turn.message,
            finish_reason=turn.finish_reason,
            prompt_ids=seen,
            extends_row=goes_on,
            token_ids=sampled,
            logprobs=None,
            exact=False,
        )
        spanned.append(replace(turn, span=builder.append(completion)))
    return tuple(spanned), builder.build()


Credit = Callable[[TrajectoryGroup, str], CreditedGroup]


def record_sessions(
    sessions: SessionFile, recorder: Recorder, origin: RunOrigin, renderer: ChatMLRenderer, credit: Credit
) -> Summary:
    summary = Summary()
    recorder.begin(origin)
    for identity, epoch, logged in sessions.groups():
        item = item_of(logged[0][1])
        siblings = [_sibling(each, index, identity, renderer) for index, each in enumerate(logged)]
        name = f"{origin.fingerprint}/{identity}/{epoch}"
        group = TrajectoryGroup(
            group_id=hashlib.sha256(name.encode()).hexdigest()[:32],
            env=origin.env,
            item_id=identity,
            epoch=epoch,
            item=item_for_record(item),
            item_hash=item_hash(item),
            trajectories=tuple(each for each in siblings if isinstance(each, Trajectory)),
            failures=tuple(each for each in siblings if isinstance(each, Failure)),
        )
        models = {session.model for _, session in logged} - {None}
        policy = ", ".join(sorted(map(str, models))) or "unknown"
        summary.add(recorder.append(credit(group, policy)))
    return summary


def _sibling(
    logged: LoggedSession, sibling: int, item_id: str, renderer: ChatMLRenderer
) -> Trajectory | Failure:
    line, session = logged
    name = session.session_id or f"line {line}"
    if not session.turns:
        return Failure(
            sibling=sibling,
            stop_reason=None,
            error=f"RolloutError: {session.error or 'the assistant said nothing'}; session {name}",
            traceback="",
            turns=0,
            error_class="RolloutError",
        )
    turns, rows = session.turns, session.rows
    if rows is None:
        turns, rows = with_row(session.prompt, turns, session.tools, renderer)
    return Trajectory(
        item_id=item_id,
        sibling=sibling,
        session_id=name,
        prompt=session.prompt,
        turns=turns,
        rows=rows,
        tools=session.tools,
        exact=session.rows is not None,
        rewards=session.rewards,
        metrics=session.metrics,
    )
