"""Token rows as next-token losses take them: what stands at index i is about token i + 1."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from environments.trainers.completion_columns import CompletionColumns, completion_columns, groups_left_out
from environments.trajectory import IGNORED, NOT_SAMPLED, CreditedGroup
from environments.wire.columns import PER_ROW, rows_of
from environments.wire.training_rows import check_rows
from tools.errors import WireError


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftedRow:
    """A token row without its last token as input, and without its first as targets; all are as long."""

    input_ids: list[int]
    target_ids: list[int]
    mask: list[int]
    """1 where the target is trained."""
    logprobs: list[float]
    """Of targets that were sampled, 0.0 elsewhere."""
    advantages: list[float]
    """Of targets that are trained, 0.0 elsewhere."""


def shifted_rows(credited: CreditedGroup) -> list[ShiftedRow]:
    """The rows in which something is trained; none, and a warning, of a group with too large an advantage.

    Raises:
        WireError: a log-probability is unknown, which losses with an importance ratio need.
    """
    columns = CompletionColumns()
    with groups_left_out():
        columns = completion_columns(credited)
    if columns.logprobs is None:
        raise WireError(
            f"group {credited.group.group_id} has tokens without log-probabilities, which the loss divides "
            f"by; sample with a server that gives them (`turnwise check-model URL`)"
        )
    rows: list[ShiftedRow] = []
    for prompt, completion, mask, logprobs, advantages in zip(
        columns.prompt_ids,
        columns.completion_ids,
        columns.tool_mask,
        columns.logprobs,
        columns.advantages,
        strict=True,
    ):
        tokens, zeros = prompt + completion, [0.0] * len(prompt)
        # A sampled token with nothing before it is no target.
        targets = ([0] * len(prompt) + mask)[1:]
        if any(targets):
            row = ShiftedRow(
                input_ids=tokens[:-1],
                target_ids=tokens[1:],
                mask=targets,
                logprobs=(zeros + logprobs)[1:],
                advantages=(zeros + advantages)[1:],
            )
            rows.append(row)
    return rows


def shifted_post(post: Mapping[str, Any]) -> list[ShiftedRow]:
    """What a trainer that reads `advantages` makes of a group of the trajectory API's batch.

    Args:
        post: columns of the view `token_advantages`, as the API hands them on; padding is left out.

    Raises:
        WireError: a column is missing or malformed.
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
        labels = row.mask[1:]
        if any(label != IGNORED for label in labels):
            shifted = ShiftedRow(
                input_ids=[*row.tokens[:-1]],
                target_ids=[*row.tokens[1:]],
                mask=[int(label != IGNORED) for label in labels],
                logprobs=[0.0 if each == NOT_SAMPLED else each for each in (row.logprobs or ())[1:]],
                advantages=[*(row.advantages or ())[1:]],
            )
            rows.append(shifted)
    return rows
