"""Training rows, and the check before they leave the process."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from environments.trajectory import IGNORED, LARGEST_FLOAT32
from tools.errors import WireError


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRow:
    """A token sequence with all that a trainer needs."""

    tokens: Sequence[int]
    mask: Sequence[int]
    """The token id where the token is trained, `IGNORED` elsewhere."""
    score: float
    advantages: Sequence[float] | None
    """One per token, 0 outside of turns; None: only the score counts."""
    logprobs: Sequence[float] | None
    """One per token, `NOT_SAMPLED` outside of turns; None: unknown."""
    messages: Sequence[Mapping[str, Any]] | None
    """The conversation in OpenAI's shape."""
    override: Mapping[str, Any] | None
    """Extra columns of this row: names, rewards, spans, advantages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """Rows that a trainer gets together."""

    rows: tuple[TrainingRow, ...]
    plain: bool = False
    """Whether this is scalar GRPO data as in Atropos, of any size."""
    binary_masks: bool = False
    """Whether masks leave as 0 and 1; in memory they are labels."""
    generation_params: Mapping[str, float] | None = None
    """Sampling parameters that the trainer must use."""


def check_rows(group: RowGroup) -> None:
    """Refuse rows that a trainer would misread or that would break a batch.

    Raises:
        WireError: names the row and its problem.
    """
    for index, row in enumerate(group.rows):
        problem = _problem(row)
        if problem is not None:
            raise WireError(f"row {index} of {len(group.rows)}: {problem}")


def _problem(row: TrainingRow) -> str | None:
    tokens, mask = row.tokens, row.mask
    if not tokens or set(map(type, tokens)) != {int} or min(tokens) < 0:
        return "tokens must be one or more plain, non-negative integers"
    if set(map(type, mask)) != {int} or len(mask) != len(tokens):
        return f"the mask must be {len(tokens)} plain integers, got {len(mask)}"
    if any(label not in (token, IGNORED) for token, label in zip(tokens, mask, strict=True)):
        return f"a mask is the token's id or {IGNORED}"
    problem = _numbers_problem(row)
    if problem is not None:
        return problem
    if any(not {"role", "content"} <= message.keys() for message in row.messages or ()):
        return "a message needs role and content"
    return _span_problem(row)


def _numbers_problem(row: TrainingRow) -> str | None:
    if type(row.score) is not float or not math.isfinite(row.score):
        return f"the score must be a plain, finite float, got {row.score!r}"
    if abs(row.score) > LARGEST_FLOAT32:
        return f"the score {row.score:g} is too large for the float32 of a trainer"
    for name, values in (("advantages", row.advantages), ("inference_logprobs", row.logprobs)):
        if values is None:
            continue
        if len(values) != len(row.tokens) or set(map(type, values)) != {float}:
            return f"{name} must be {len(row.tokens)} plain floats"
        if not all(map(math.isfinite, values)):
            return f"{name} must be finite"
        if max(max(values), -min(values)) > LARGEST_FLOAT32:
            return f"{name} are too large for the float32 of a trainer"
    return None


def _span_problem(row: TrainingRow) -> str | None:
    spans = (row.override or {}).get("turn_spans")
    if spans is None:
        return None
    covered = list(chain.from_iterable(range(start, end) for start, end in spans))
    if covered != [index for index, label in enumerate(row.mask) if label != IGNORED]:
        return f"the spans {spans} must cover every trainable token exactly once"
    return None
