"""The groups of one optimiser step as columns, with as many rows for each as a trainer takes of a prompt."""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from environments.trainers.completion_columns import CompletionColumns, GroupLeftOut, completion_columns
from environments.trajectory import CreditedGroup
from tools.errors import RunError

COUNTED = ("ok", "no_credit", "failed", "left_out", "padding")
"""Groups by what became of them; and rows that are padding."""
_LOG = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class StepColumns:
    """`columns` of all groups in their order, `rows` of each."""

    columns: CompletionColumns = field(default_factory=CompletionColumns)
    scores: list[float | None] = field(default_factory=list[float | None])
    """Of the trajectory that a row belongs to; `None`: padding, or nothing was scored."""
    counts: Counter[str] = field(default_factory=Counter[str])
    """Of `COUNTED`."""


def step_columns(groups: Sequence[CreditedGroup], *, rows: int) -> StepColumns:
    """Every group, padded to `rows`; one that failed, or that has more rows than that, is padding whole.

    Raises:
        RunError: no group is left, so that there is nothing to take a step with.
    """
    step = StepColumns()
    reason = ""
    for group in groups:
        kept, became = group, str(group.status)
        try:
            columns = completion_columns(group, rows=rows)
        except GroupLeftOut as error:
            became, reason, columns = "left_out", str(error), None
        if became == "failed":
            reason, columns = _why(group), None
        if columns is None:
            _LOG.warning("a group is not trained on: %s", reason)
            columns, kept = _padding(rows), None
        step.counts[became] += 1
        step.counts["padding"] += sum(columns.is_padding)
        _append(step, columns, kept, rows)
    if not step.counts["ok"] and not step.counts["no_credit"]:
        raise RunError(f"none of the {len(groups)} groups of a step can be trained on; the last: {reason}")
    return step


def _append(step: StepColumns, columns: CompletionColumns, group: CreditedGroup | None, rows: int) -> None:
    whole = step.columns
    whole.prompt_ids += columns.prompt_ids
    whole.completion_ids += columns.completion_ids
    whole.tool_mask += columns.tool_mask
    whole.advantages += columns.advantages
    whole.is_padding += columns.is_padding
    if whole.logprobs is None or columns.logprobs is None:
        whole.logprobs = None
    else:
        whole.logprobs += columns.logprobs
    trajectories = () if group is None else group.group.trajectories
    scores = [each.score for each in trajectories for _ in each.rows]
    step.scores += [*scores, *[None] * (rows - len(scores))]


def _why(group: CreditedGroup) -> str:
    broken = [f" ({failure.error})" for failure in group.group.failures[:1]]
    return f"item {group.group.item_id}: {group.reason}{''.join(broken)}"


def _padding(rows: int) -> CompletionColumns:
    return CompletionColumns(
        prompt_ids=[[0]] * rows,
        completion_ids=[[0]] * rows,
        logprobs=[[0.0]] * rows,
        tool_mask=[[0]] * rows,
        advantages=[[0.0]] * rows,
        is_padding=[True] * rows,
    )
