"""Payloads for Atropos' API: checked posts of rows as compressed JSON."""

import gzip
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import orjson

from environments.trajectory import CreditedGroup, StopReason, Trajectory, TrajectoryGroup, drop_sibling
from environments.wire.padding import fill_posts, is_longer_than, pad_untrained, remove_rows
from environments.wire.training_rows import (
    PER_ROW,
    Columns,
    RowGroup,
    TrainingRow,
    check_rows,
    columns_of,
    rows_of,
)
from environments.wire.views import TOKENS_PER_TURN, VIEWS, Divisor, PrefixWeighting
from tools.errors import ConfigError, WireError

ROW_BY_ROW = frozenset({"turn_rows", "prefix_rows"})

_LEVEL = 1
_GZIP = 31


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    view: str = "token_advantages"
    group_size: int
    divisor: Divisor = TOKENS_PER_TURN
    prefix_weighting: PrefixWeighting = "once"
    max_row_tokens: int | None = None
    include_messages: bool = True
    sampling: Mapping[str, float] = field(default_factory=dict[str, float])
    """Temperature and top_p if not 1, which the trainer must use too."""

    @property
    def rows_per_post(self) -> int:
        """Rows per post: the registered group size, a divisor of the batch."""
        return 1 if self.view in ROW_BY_ROW else self.group_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    body: bytes
    longest_row: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    parts: tuple[Part, ...]
    too_long: int


def pack(credited: CreditedGroup, shape: Shape) -> Package:
    """Convert a group to its view, check it, drop long rows, and compress."""
    groups, too_long = posts_of(credited, shape)
    return Package(parts=tuple(map(_part, groups)), too_long=too_long)


def posts_of(credited: CreditedGroup, shape: Shape) -> tuple[list[RowGroup], int]:
    """Return (the rows of each post, number of rows left out as too long).

    Raises:
        WireError: if a row is malformed.
    """
    scored = [(each.score, each.rows) for each in credited.group.trajectories if each.score is not None]
    owners = [sibling for sibling, (_, rows) in enumerate(scored) for _ in rows]
    scores = [score for score, _ in scored]
    groups: list[RowGroup] = []
    too_long = 0
    try:
        for group in VIEWS[shape.view](credited, shape.divisor, shape.prefix_weighting):
            check_rows(group)
            if not shape.include_messages:
                group = replace(group, rows=tuple(replace(row, messages=None) for row in group.rows))
            if shape.sampling:
                group = replace(group, generation_params=shape.sampling)
            fitting = pad_untrained(group)
            if shape.max_row_tokens is not None:
                fitting, long = remove_rows(fitting, is_longer_than(shape.max_row_tokens))
                too_long += long
            if fitting is not None and shape.view in ROW_BY_ROW:
                groups.append(fitting)
            elif fitting is not None:
                groups += fill_posts(fitting, owners, scores, shape.rows_per_post)
    except OverflowError as error:
        raise WireError(f"the scores are too large to be normalised: {error}") from error
    return groups, too_long


def part_without(part: Part, is_out: Callable[[TrainingRow], bool]) -> tuple[Part | None, int]:
    """Return (the part without rows that are out, or None if all are; number of rows out)."""
    group, out = remove_rows(rows_of(orjson.loads(post_text(part.body))), is_out)
    return None if group is None else _part(group), out


def post_body(part: bytes, env_id: int) -> bytes:
    return gzip.compress(b'{"env_id":%d,' % env_id, _LEVEL) + part


def post_text(part: bytes) -> bytes:
    return b"{" + gzip.decompress(part)


def compress(columns: Columns) -> bytes:
    """Return columns as gzipped JSON without the opening brace; WireError if a value is not JSON.

    Row by row, so that no step holds the GIL for long.
    """
    stream = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    try:
        return b"".join([*map(stream.compress, _json(columns)), stream.flush()])
    except orjson.JSONEncodeError as error:
        raise WireError(f"a row is not JSON: {error}") from error


def _part(group: RowGroup) -> Part:
    longest_row = max(len(row.tokens) for row in group.rows)
    return Part(body=compress(columns_of(group)), longest_row=longest_row)


def _json(columns: Columns) -> Iterator[bytes]:
    for number, (name, column) in enumerate(columns.items()):
        yield b"%s%s:" % (b"," if number else b"", orjson.dumps(name))
        if name in PER_ROW:
            yield b"["
            for row, value in enumerate(column):
                yield (b"," if row else b"") + orjson.dumps(value)
            yield b"]"
        else:
            yield orjson.dumps(column)
    yield b"}"


MOST_IN_A_ROW = 8


def refuse_text_only(servers: Sequence[str]) -> None:
    if servers:
        raise ConfigError(
            f"{servers[0]}, and gives no token ids, so a trainer would learn from tokens that were never "
            f"sampled; send ids to vLLM, SGLang or llama.cpp, or set --env.allow_approximate_tokens"
        )


def only_exact(
    credited: CreditedGroup, credit: Callable[[TrajectoryGroup], CreditedGroup]
) -> tuple[CreditedGroup, tuple[str, ...]]:
    """Drop rollouts without exact tokens as failures, and credit the rest again.

    Returns:
        (credited group, what each dropped rollout lacks).
    """
    group = credited.group
    lacking = [(each, what) for each in group.trajectories if (what := _lacking(each)) is not None]
    if not lacking:
        return credited, ()
    kept = tuple(each for each in group.trajectories if _lacking(each) is None)
    failures = [
        drop_sibling(
            each, "PolicyError", f"the model server gave no {what}", stop_reason=StopReason.POLICY_ERROR
        )
        for each, what in lacking
    ]
    left = replace(group, trajectories=kept, failures=(*group.failures, *failures))
    return credit(left), tuple(what for _, what in lacking)


class ExactTokens:
    """Stops a run in which rollouts without exact tokens are common."""

    def __init__(self, *, say: Callable[[str], None]) -> None:
        self._say = say
        self._seen = False
        self._in_a_row = 0

    def add(self, item_id: str, lacking: Sequence[str], *, has_others: bool) -> None:
        """Count a group's rollouts that lack tokens; `has_others`: whether exact ones are left.

        Raises:
            ConfigError: if the server never gave exact tokens, or no longer does.
        """
        self._seen = self._seen or has_others
        if not lacking:
            self._in_a_row = 0
            return
        self._in_a_row += 1
        what = lacking[0]
        if not self._seen or self._in_a_row >= MOST_IN_A_ROW:
            raise ConfigError(
                f"the model server gives no {what}, so a trainer would learn from tokens that were never "
                f"sampled, or refuse them; use a server that answers return_token_ids and logprobs (vLLM, "
                f"SGLang), or accept it with --env.allow_approximate_tokens"
            )
        self._say(f"item {item_id}: {len(lacking)} rollouts dropped, the model server gave no {what}")


def _lacking(trajectory: Trajectory) -> str | None:
    if not trajectory.exact:
        return "token ids"
    return "logprobs" if any(row.logprobs is None for row in trajectory.rows) else None
