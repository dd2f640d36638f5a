"""A line with another credit: what credit is no part of, tokens and text, is copied as it stands."""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import orjson

from environments.record.line_fields import LineFields
from environments.record.schema_2 import SCHEMA
from environments.trajectory import CreditedGroup, Span
from environments.wire.credited_rows import trained_span

_OF_ROWS = b"0123456789,[]"
Credit = list[tuple[Span, float]]


def with_credit(fields: LineFields, credited: CreditedGroup) -> bytes | None:
    """The line of a group that has other advantages now, and is the same otherwise.

    Returns:
        What `encode_group` gives, or `None` where the line is not as that function writes it.
    """
    parsed = fields.parsed(("schema", "trajectories", "overrides"))
    lengths = _row_lengths(fields["tokens"])
    if parsed["schema"] != SCHEMA or lengths is None:
        return None
    columns = _by_row(parsed["trajectories"], credited)
    if not _fit(columns, lengths, parsed["overrides"]):
        return None
    for trajectory, advantages in zip(parsed["trajectories"], credited.advantages, strict=True):
        trajectory["advantages"] = list(advantages)
    for override, row in zip(parsed["overrides"], columns, strict=True):
        override["turn_advantages"] = [value for _, value in row]
    new = {
        "status": credited.status,
        "reason": credited.reason,
        "estimator": credited.estimator,
        "estimator_params": dict(credited.estimator_params),
        "turns_without_peer": credited.turns_without_peer,
        "trajectories": parsed["trajectories"],
        "overrides": parsed["overrides"],
    }
    texts = {name: orjson.dumps(value) for name, value in new.items()}
    texts["advantages"] = _column(columns, lengths)
    every = [orjson.dumps(name) + b":" + (texts.get(name) or fields[name]) for name in fields]
    return b"{" + b",".join(every) + b"}\n"


def _row_lengths(tokens: bytes) -> list[int] | None:
    """How many tokens each row has, from the text of the column; `None`: somebody else wrote it."""
    if tokens == b"[]":
        return []
    if tokens.translate(None, _OF_ROWS) or not tokens.startswith(b"[["):
        return None
    return [row.count(b",") + 1 if row else 0 for row in tokens[2:-2].split(b"],[")]


def _by_row(trajectories: Sequence[dict[str, Any]], credited: CreditedGroup) -> list[Credit]:
    """Per row of the line the trained span and the advantage of each of its turns."""
    rows: list[Credit] = []
    for fields, trajectory, advantages in zip(
        trajectories, credited.group.trajectories, credited.advantages, strict=True
    ):
        of_row: defaultdict[int, Credit] = defaultdict(list)
        for turn, advantage in zip(trajectory.turns, advantages, strict=True):
            of_row[turn.span.row].append((trained_span(turn), float(advantage)))
        rows += [of_row[index] for index in range(len(fields["rows"]))]
    return rows


def _fit(rows: Sequence[Credit], lengths: Sequence[int], overrides: list[Any] | None) -> bool:
    """Whether spans follow each other within their rows, and every row says what its credit is."""
    if overrides is None or not len(rows) == len(lengths) == len(overrides):
        return False
    for credit, length in zip(rows, lengths, strict=True):
        bounds = [bound for span, _ in credit for bound in (span.start, span.end)]
        if bounds != sorted(bounds) or not all(0 <= bound <= length for bound in bounds):
            return False
        if not all(math.isfinite(advantage) for _, advantage in credit):
            return False
    return True


def _column(rows: Sequence[Credit], lengths: Sequence[int]) -> bytes:
    """The advantage of each token, as JSON."""
    texts: list[bytes] = []
    for credit, length in zip(rows, lengths, strict=True):
        parts: list[bytes] = []
        at = 0
        for span, advantage in credit:
            parts.append(b"0.0," * (span.start - at))
            parts.append((orjson.dumps(advantage) + b",") * (span.end - span.start))
            at = span.end
        parts.append(b"0.0," * (length - at))
        texts.append(b"[" + b"".join(parts)[:-1] + b"]")
    return b"[" + b",".join(texts) + b"]"
