"""What leaves for the trainer: checked rows in groups that the API can batch, as compressed JSON."""

import gzip
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import orjson

from environments.trajectory import IGNORED, CreditedGroup
from environments.wire.padding import PER_ROW, posts, shorten
from environments.wire.views import VIEWS, Columns
from tools.errors import WireError

ROW_BY_ROW = frozenset({"turn_rows", "prefix_rows"})
"""Views whose every row is a group of its own."""

_LEVEL = 1
_GZIP = 31


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What the trainer reads and the API can batch."""

    view: str = "token_advantages"
    group_size: int
    """Rollouts per item."""
    max_row_tokens: int | None = None
    """The trainer's limit; longer rows are left out."""
    include_messages: bool = True
    sampling: Mapping[str, float] = field(default_factory=dict[str, float])
    """Temperature and top_p, where they are not 1: the trainer has to use the same."""

    @property
    def rows_per_post(self) -> int:
        """Rows of every post: what is registered as the group size, and must divide the batch."""
        return 1 if self.view in ROW_BY_ROW else self.group_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one post carries."""

    body: bytes
    """Compressed rows, see `post_body`."""
    longest_row: int
    """In tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """One credited group, ready to be posted."""

    parts: tuple[Part, ...]
    """One per post."""
    too_long: int
    """Rows left out because the trainer could not take their length."""


def pack(credited: CreditedGroup, shape: Shape) -> Package:
    """Encode a group in its view, check it, take out what is too long, and compress.

    Raises:
        WireError: a row is malformed.
    """
    parts: list[Part] = []
    too_long = 0
    try:
        for columns in VIEWS[shape.view](credited):
            check_columns(columns)
            if not shape.include_messages:
                columns["messages"] = None
            if shape.sampling:
                columns["generation_params"] = dict(shape.sampling)
            fitting, long = _within(columns, shape.max_row_tokens)
            too_long += long
            if fitting is not None:
                parts += [_part(post) for post in _posts(fitting, credited, shape)]
    except OverflowError as error:
        raise WireError(f"the scores are too large to be normalised: {error}") from error
    return Package(parts=tuple(parts), too_long=too_long)


def shortened(part: Part, max_tokens: int) -> tuple[Part | None, int]:
    """A part for a trainer that takes shorter rows than the one it was packed for.

    Returns:
        The part, `None` when nothing is left to learn from; and the number of rows taken out.
    """
    columns, long = shorten(orjson.loads(post_text(part.body)), max_tokens)
    return None if columns is None else _part(columns), long


def post_body(part: bytes, env_id: int) -> bytes:
    """The gzip body of one post: the environment's id, known only now, in a gzip member before the rest."""
    return gzip.compress(b'{"env_id":%d,' % env_id, _LEVEL) + part


def post_text(part: bytes) -> bytes:
    """The JSON of a part, as the API would read it without an environment's id."""
    return b"{" + gzip.decompress(part)


def compress(columns: Columns) -> bytes:
    """Columns as JSON without the opening brace, gzipped.

    Row by row, so that no step holds the interpreter for long: an event loop in another thread goes on.

    Raises:
        WireError: a value that JSON does not know.
    """
    stream = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    try:
        return b"".join([*map(stream.compress, _json(columns)), stream.flush()])
    except orjson.JSONEncodeError as error:
        raise WireError(f"a row is no JSON: {error}") from error


def check_columns(columns: Columns) -> None:
    """Refuse what the API would take and a trainer would misread, or what would break a whole batch.

    Raises:
        WireError: names the row and what is wrong with it.
    """
    rows = len(columns["tokens"])
    for name in PER_ROW:
        column = columns[name]
        if column is None and name not in PER_ROW[:3]:
            continue
        if not isinstance(column, list) or len(column) != rows:  # pyright: ignore[reportUnknownArgumentType]  # any JSON
            raise WireError(f"{name} must have one entry per row ({rows})")
    overrides = columns["group_overrides"]
    if not isinstance(overrides, dict) or overrides.get("group_size", rows) != rows:  # pyright: ignore[reportUnknownMemberType]  # any JSON
        raise WireError(f"group_overrides must name the {rows} rows of the group, got {overrides!r}")
    for row in range(rows):
        problem = _problem(columns, row)
        if problem is not None:
            raise WireError(f"row {row} of {rows}: {problem}")


def _problem(columns: Columns, row: int) -> str | None:
    """The first thing that is wrong with a row."""
    tokens, masks, score = columns["tokens"][row], columns["masks"][row], columns["scores"][row]
    if not tokens or set(map(type, tokens)) != {int} or min(tokens) < 0:
        return "tokens must be one or more plain, non-negative integers"
    if set(map(type, masks)) != {int} or len(masks) != len(tokens):
        return f"the mask must be {len(tokens)} plain integers, got {len(masks)}"
    if any(label not in (token, IGNORED) for token, label in zip(tokens, masks, strict=True)):
        return f"a mask is the token's id or {IGNORED}"
    if type(score) is not float or not math.isfinite(score):
        return f"the score must be a plain, finite float, got {score!r}"
    for name in ("advantages", "inference_logprobs"):
        if columns[name] is None:
            continue
        values = columns[name][row]
        if len(values) != len(tokens) or set(map(type, values)) != {float}:
            return f"{name} must be {len(tokens)} plain floats"
        if not all(map(math.isfinite, values)):
            return f"{name} must be finite"
    if columns["messages"] is not None and any(
        not {"role", "content"} <= message.keys() for message in columns["messages"][row]
    ):
        return "a message needs role and content"
    return _span_problem(masks, columns["overrides"], row)


def _span_problem(masks: Sequence[int], overrides: list[dict[str, Any]] | None, row: int) -> str | None:
    spans = (overrides or [{}] * (row + 1))[row].get("turn_spans")
    if spans is None:
        return None
    covered = list(chain.from_iterable(range(start, end) for start, end in spans))
    if covered != [place for place, label in enumerate(masks) if label != IGNORED]:
        return f"the spans {spans} must cover every trainable token exactly once"
    return None


def _within(columns: Columns, max_tokens: int | None) -> tuple[Columns | None, int]:
    return (columns, 0) if max_tokens is None else shorten(columns, max_tokens)


def _posts(columns: Columns, credited: CreditedGroup, shape: Shape) -> Iterator[Columns]:
    if shape.view in ROW_BY_ROW:
        return iter((columns,))
    scores = [trajectory.score for trajectory in credited.group.trajectories]
    return posts(columns, scores, shape.rows_per_post)


def _part(columns: Columns) -> Part:
    return Part(body=compress(columns), longest_row=max(map(len, columns["tokens"])))


def _json(columns: Columns) -> Iterator[bytes]:
    for number, (name, column) in enumerate(columns.items()):
        yield b"%s%s:" % (b"," if number else b"", orjson.dumps(name))
        if name in PER_ROW and column is not None:
            yield b"["
            for row, value in enumerate(column):
                yield (b"," if row else b"") + orjson.dumps(value)
            yield b"]"
        else:
            yield orjson.dumps(column)
    yield b"}"
