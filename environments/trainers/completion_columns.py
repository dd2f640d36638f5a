"""Credited groups in trainers' formats: columns of completions, and rows for next-token losses."""

import logging
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Self

from environments.trajectory import IGNORED, LARGEST_FLOAT32, NOT_SAMPLED, CreditedGroup, Trajectory
from environments.wire.credited_rows import credited_rows, span_to_train
from environments.wire.training_rows import PER_ROW, check_rows, rows_of
from tools.errors import WireError

COUNTED = ("ok", "no_credit", "alone", "failed", "left_out", "padding")
"""Groups by result, and rows of padding."""
NO_TURN = -1
_LOG = logging.getLogger(__name__)


class GroupLeftOut(WireError):
    """Raised where a trainer cannot use a group."""


@dataclass(slots=True, kw_only=True)
class CompletionColumns:
    """Columns with one entry per token row, `[row][token]`; all but `prompt_ids` cover the completion."""

    prompt_ids: list[list[int]] = field(default_factory=list[list[int]])
    completion_ids: list[list[int]] = field(default_factory=list[list[int]])
    """All tokens from the first sampled one on."""
    logprobs: list[list[float]] | None = field(default_factory=list[list[float]])
    """Log-probabilities of sampled tokens, else 0.0; None if some are unknown."""
    tool_mask: list[list[int]] = field(default_factory=list[list[int]])
    """1 where a token is trained, else 0."""
    advantages: list[list[float]] = field(default_factory=list[list[float]])
    turn_ids: list[list[int]] = field(default_factory=list[list[int]])
    """For each token the index of its turn, or -1 where the token is not trained."""

    @property
    def rows(self) -> int:
        return len(self.prompt_ids)

    def add_group(self, credited: CreditedGroup, *, rows: int | None = None) -> None:
        refuse_unfit(credited)
        given = list(credited_rows(credited))
        if rows is not None and len(given) > rows:
            trajectories = credited.group.trajectories
            forked = sum(len(trajectory.rows) > 1 for trajectory in trajectories)
            raise GroupLeftOut(
                f"group {credited.group.group_id} has {len(given)} token rows, since {forked} of its "
                f"{len(trajectories)} trajectories forked, and {rows} are taken of a prompt"
            )
        for row in given:
            sampled = [turn.span.start for turn in row.turns if turn.span.end > turn.span.start]
            # A row without sampled tokens has its last token as completion, untrained.
            start = min(sampled, default=len(row.tokens) - 1)
            if self.logprobs is not None and row.logprobs is not None:
                self.logprobs.append(_hide_marks(row.logprobs[start:]))
            else:
                self.logprobs = None
            self.prompt_ids.append(row.tokens[:start])
            self.completion_ids.append(row.tokens[start:])
            self.tool_mask.append(_to_mask(row.mask[start:]))
            self.advantages.append(row.advantages[start:])
            ids = [NO_TURN] * len(row.tokens)
            for turn in row.turns:
                span = span_to_train(turn)
                ids[span.start : span.end] = [turn.index] * (span.end - span.start)
            self.turn_ids.append(ids[start:])

    def extend(self, other: Self) -> None:
        self.prompt_ids += other.prompt_ids
        self.completion_ids += other.completion_ids
        self.tool_mask += other.tool_mask
        self.advantages += other.advantages
        self.turn_ids += other.turn_ids
        if self.logprobs is not None and other.logprobs is not None:
            self.logprobs += other.logprobs
        else:
            self.logprobs = None

    def pad(self, rows: int, pad_id: int) -> None:
        missing = max(0, rows - self.rows)
        self.prompt_ids += [[pad_id]] * missing
        self.completion_ids += [[pad_id]] * missing
        self.tool_mask += [[0]] * missing
        self.advantages += [[0.0]] * missing
        self.turn_ids += [[NO_TURN]] * missing
        if self.logprobs is not None:
            self.logprobs += [[0.0]] * missing


def completion_columns(
    credited: CreditedGroup, *, rows: int | None = None, pad_id: int = 0
) -> CompletionColumns:
    """Return the rows of a group as columns, in the order of trajectories and rows.

    Missing rows of `rows` are padding, which is not trained.

    Raises:
        GroupLeftOut: if there are more than `rows`, or `refuse_unfit` refuses the group.
    """
    columns = CompletionColumns()
    columns.add_group(credited, rows=rows)
    columns.pad(rows or 0, pad_id)
    return columns


def behaviour_ratios(
    turn_ids: Sequence[int], old_logprobs: Sequence[float], sampled_logprobs: Sequence[float], *, cut: float
) -> list[float]:
    """Return per token how much likelier its turn is to the trainer than to the policy that sampled it.

    The geometric mean over the turn's tokens of exp(old - sampled), at most `cut`; 1.0 outside of turns. It
    is known before the loss, multiplies the turn's advantage, and leaves the ratio of the loss as it is.
    """
    of_turn: defaultdict[int, list[float]] = defaultdict(list)
    for turn, old, sampled in zip(turn_ids, old_logprobs, sampled_logprobs, strict=True):
        if turn != NO_TURN:
            of_turn[turn].append(old - sampled)
    limit = math.log(cut)
    ratios = {turn: math.exp(min(sum(each) / len(each), limit)) for turn, each in of_turn.items()}
    return [ratios.get(turn, 1.0) for turn in turn_ids]


def refuse_unfit(credited: CreditedGroup) -> None:
    """Raise GroupLeftOut if tokens were never sampled or an advantage exceeds float32."""
    made_up = [each.sibling for each in credited.group.trajectories if not each.exact]
    if made_up:
        raise GroupLeftOut(
            f"group {credited.group.group_id} has tokens that were never sampled (sibling {made_up[0]}), "
            f"since the model server gave text alone; use vLLM or SGLang"
        )
    advantages = chain.from_iterable(credited.advantages)
    # `not <=` also refuses NaN.
    if wrong := [each for each in advantages if not abs(each) <= LARGEST_FLOAT32]:
        raise GroupLeftOut(
            f"group {credited.group.group_id} has an advantage of {wrong[0]:g}, too large for the float32 of "
            f"a trainer; scale its rewards"
        )


@contextmanager
def groups_left_out() -> Generator[None]:
    try:
        yield
    except GroupLeftOut as error:
        _LOG.warning("a group is not trained on: %s", error)


def mean_score(trajectories: Iterable[Trajectory]) -> float:
    known = [trajectory.score for trajectory in trajectories if trajectory.score is not None]
    return sum(known) / len(known) if known else math.nan


@dataclass(slots=True, kw_only=True)
class StepColumns:
    """Columns of all groups of an optimiser step, equally many rows each."""

    columns: CompletionColumns = field(default_factory=CompletionColumns)
    scores: list[float | None] = field(default_factory=list[float | None])
    counts: Counter[str] = field(default_factory=Counter[str])
    reason: str = ""

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        whole = cls()
        for part in parts:
            whole.columns.extend(part.columns)
            whole.scores += part.scores
            whole.counts += part.counts
            whole.reason = part.reason or whole.reason
        return whole


def step_columns(
    groups: Sequence[CreditedGroup],
    *,
    rows: int,
    pad_id: int = 0,
    trained: Collection[str] = ("ok", "no_credit", "alone"),
) -> StepColumns:
    """Return all groups, each padded to `rows`; a group of another status, or with more rows, is padding."""
    step = StepColumns()
    for index, group in enumerate(groups):
        status, before = str(group.status), step.columns.rows
        if status in trained:
            try:
                step.columns.add_group(group, rows=rows)
            except GroupLeftOut as error:
                status, step.reason = "left_out", str(error)
        elif status == "failed":
            broken = [f" ({failure.error})" for failure in group.group.failures[:1]]
            step.reason = f"item {group.group.item_id}: {group.reason}{''.join(broken)}"
        if status in ("failed", "left_out"):
            _LOG.warning("a group is not trained on: %s", step.reason)
        added = step.columns.rows - before
        trajectories = group.group.trajectories if added else ()
        step.scores += [each.score for each in trajectories for _ in each.rows] + [None] * (rows - added)
        step.columns.pad(rows * (index + 1), pad_id)
        step.counts[status] += 1
        step.counts["padding"] += rows - added
    return step


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftedRow:
    """A token row for next-token losses: inputs lack the last token, targets the first."""

    input_ids: list[int]
    target_ids: list[int]
    mask: list[int]
    logprobs: list[float]
    advantages: list[float]


def shifted_rows(credited: CreditedGroup) -> list[ShiftedRow]:
    """Return the rows with trained tokens; none, and a warning, of a group that a trainer cannot use.

    Raises:
        WireError: if a log-probability is unknown.
    """
    rows: list[ShiftedRow] = []
    with groups_left_out():
        refuse_unfit(credited)
        for row in credited_rows(credited):
            if row.logprobs is None:
                raise WireError(
                    f"group {credited.group.group_id} has tokens without log-probabilities, which the loss "
                    f"divides by; sample with a server that gives them (`turnwise doctor model URL`)"
                )
            rows += _shift(row.tokens, row.mask, row.logprobs, row.advantages)
    return rows


def shifted_post(post: Mapping[str, Any]) -> list[ShiftedRow]:
    """Return the rows that a trainer makes of columns of the view `token_advantages`.

    Raises:
        WireError: if a column is missing or malformed.
    """
    for name in ("advantages", "inference_logprobs"):
        if post.get(name) is None:
            raise WireError(
                f"the post has no {name}; serve with --env.credit_view token_advantages, of an environment "
                f"with turn rewards, from a server that gives log-probabilities"
            )
    given: dict[str, Any] = {"group_overrides": None, **post}
    if len({len(given[name]) for name in PER_ROW if given.get(name)}) > 1:
        raise WireError("the post's columns are not of the same length")
    group = rows_of(given)
    check_rows(group)
    rows: list[ShiftedRow] = []
    for row in group.rows:
        rows += _shift(row.tokens, row.mask, row.logprobs or (), row.advantages or ())
    return rows


def _shift(
    tokens: Sequence[int], labels: Sequence[int], logprobs: Sequence[float], advantages: Sequence[float]
) -> list[ShiftedRow]:
    mask = _to_mask(labels[1:])
    if not any(mask):
        return []
    row = ShiftedRow(
        input_ids=[*tokens[:-1]],
        target_ids=[*tokens[1:]],
        mask=mask,
        logprobs=_hide_marks(logprobs[1:]),
        advantages=[*advantages[1:]],
    )
    return [row]


def _to_mask(labels: Sequence[int]) -> list[int]:
    return [int(label != IGNORED) for label in labels]


def _hide_marks(logprobs: Sequence[float]) -> list[float]:
    return [0.0 if each == NOT_SAMPLED else each for each in logprobs]
