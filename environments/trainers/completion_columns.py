"""A credited group as trainers of completions take it: prompt, completion, mask, an advantage per token."""

import logging
import math
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain

from environments.trajectory import IGNORED, LARGEST_FLOAT32, CreditedGroup, Trajectory
from environments.wire.credited_rows import CreditedRow, credited_rows
from tools.errors import WireError

_LOG = logging.getLogger(__name__)


class GroupLeftOut(WireError):
    """A trainer cannot take the group: it is left out whole."""


class TooManyRows(GroupLeftOut):
    """A group has more token rows than a trainer takes of one prompt."""


@dataclass(slots=True, kw_only=True)
class CompletionColumns:
    """Columns with one entry per token row; those of completions are as long as the completion."""

    prompt_ids: list[list[int]] = field(default_factory=list[list[int]])
    """What the model saw before the first token that was sampled in the row."""
    completion_ids: list[list[int]] = field(default_factory=list[list[int]])
    """All that follows: sampled turns, and the tool results and replies between them."""
    logprobs: list[list[float]] | None = field(default_factory=list[list[float]])
    """Of the sampled tokens, 0.0 elsewhere; `None`: some are unknown."""
    tool_mask: list[list[int]] = field(default_factory=list[list[int]])
    """1 where a token is trained, 0 where tools, the world or an untrained turn said it."""
    advantages: list[list[float]] = field(default_factory=list[list[float]])
    """Per token: its turn's advantage where `tool_mask` is 1, 0.0 elsewhere."""
    is_padding: list[bool] = field(default_factory=list[bool])
    """Whether a row only fills the place of a sibling that was dropped: nothing in it is trained."""

    @property
    def rows(self) -> int:
        """How many there are."""
        return len(self.prompt_ids)

    def padded(self, rows: int, pad_id: int) -> "CompletionColumns":
        """Itself, with padding for each row that is missing."""
        for _ in range(self.rows, rows):
            _pad(self, pad_id)
        return self


def completion_columns(
    credited: CreditedGroup, *, rows: int | None = None, pad_id: int = 0
) -> CompletionColumns:
    """The rows of a group as columns, in the order of trajectories and rows.

    Args:
        credited: a group with its advantages.
        rows: as many as a trainer takes of one prompt; missing ones are padding, which trains nothing.
            `None`: those that there are.
        pad_id: the id that padding is made of.

    Raises:
        TooManyRows: forked trajectories have more than `rows`.
        GroupLeftOut: an advantage is too large for a trainer, or tokens were made of text.
    """
    refuse_unfit(credited)
    columns = CompletionColumns()
    for row in credited_rows(credited):
        _add(columns, row)
    if rows is not None and columns.rows > rows:
        trajectories = credited.group.trajectories
        forked = sum(len(trajectory.rows) > 1 for trajectory in trajectories)
        raise TooManyRows(
            f"group {credited.group.group_id} has {columns.rows} token rows, since {forked} of its "
            f"{len(trajectories)} trajectories forked, and {rows} are taken of a prompt"
        )
    return columns.padded(rows or 0, pad_id)


def refuse_unfit(credited: CreditedGroup) -> None:
    """Hold a group to tokens that were sampled, and to advantages that float32 knows.

    Raises:
        GroupLeftOut: it has others.
    """
    made_up = [each.sibling for each in credited.group.trajectories if not each.exact]
    if made_up:
        raise GroupLeftOut(
            f"group {credited.group.group_id} has tokens that were never sampled (sibling {made_up[0]}), "
            f"since the model server gave text alone; use vLLM or SGLang"
        )
    advantages = chain.from_iterable(credited.advantages)
    # NaN is not at most anything.
    if wrong := [each for each in advantages if not abs(each) <= LARGEST_FLOAT32]:
        raise GroupLeftOut(
            f"group {credited.group.group_id} has an advantage of {wrong[0]:g}, too large for the float32 of "
            f"a trainer; scale its rewards"
        )


def mean_score(trajectories: Iterable[Trajectory]) -> float:
    """For charts: over those that were scored; NaN where none was, which is not 0."""
    known = [trajectory.score for trajectory in trajectories if trajectory.score is not None]
    return sum(known) / len(known) if known else math.nan


@contextmanager
def groups_left_out() -> Generator[None]:
    """Around what is done with one group: one that a trainer cannot take costs a warning, and no run."""
    try:
        yield
    except GroupLeftOut as error:
        _LOG.warning("a group is not trained on: %s", error)


def _add(columns: CompletionColumns, row: CreditedRow) -> None:
    sampled = [turn.span for turn in row.turns if turn.span.end > turn.span.start]
    # A row in which nothing was sampled trains nothing; its last token stands for a completion.
    start = min((span.start for span in sampled), default=len(row.tokens) - 1)
    columns.prompt_ids.append(row.tokens[:start])
    columns.completion_ids.append(row.tokens[start:])
    columns.tool_mask.append([int(label != IGNORED) for label in row.mask[start:]])
    columns.advantages.append(row.advantages[start:])
    columns.is_padding.append(False)
    if row.logprobs is None:
        columns.logprobs = None
    elif columns.logprobs is not None:
        logprobs = [0.0] * len(row.tokens)
        for span in sampled:
            logprobs[span.start : span.end] = row.logprobs[span.start : span.end]
        columns.logprobs.append(logprobs[start:])


def _pad(columns: CompletionColumns, pad_id: int) -> None:
    columns.prompt_ids.append([pad_id])
    columns.completion_ids.append([pad_id])
    columns.tool_mask.append([0])
    columns.advantages.append([0.0])
    columns.is_padding.append(True)
    if columns.logprobs is not None:
        columns.logprobs.append([0.0])
