"""Token rows as next-token losses take them: what stands at index i is about token i + 1."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from environments.trainers.completion_columns import completion_columns
from environments.trajectory import IGNORED, NOT_SAMPLED, CreditedGroup
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
    """The rows of a group in which something is trained.

    Raises:
        WireError: a log-probability is unknown, which losses with an importance ratio need.
    """
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
        if any(mask):
            untrained = len(prompt) - 1
            tokens = prompt + completion
            row = ShiftedRow(
                input_ids=tokens[:-1],
                target_ids=tokens[1:],
                mask=[0] * untrained + mask,
                logprobs=[0.0] * untrained + logprobs,
                advantages=[0.0] * untrained + advantages,
            )
            rows.append(row)
    return rows


def shifted_post(post: Mapping[str, Any]) -> list[ShiftedRow]:
    """What a trainer that reads `advantages` makes of a group of the trajectory API's batch.

    Args:
        post: columns of the view `token_advantages`, as the API hands them on; padding is left out.

    Raises:
        WireError: a column is missing, or the masks are no labels.
    """
    for name in ("advantages", "inference_logprobs"):
        if post.get(name) is None:
            raise WireError(
                f"the post has no {name}; serve with --env.credit_view token_advantages, of an environment "
                f"with turn rewards, from a server that gives log-probabilities"
            )
    rows: list[ShiftedRow] = []
    for tokens, labels, logprobs, advantages in zip(
        post["tokens"], post["masks"], post["inference_logprobs"], post["advantages"], strict=True
    ):
        if any(label not in (IGNORED, token) for token, label in zip(tokens, labels, strict=True)):
            raise WireError(f"the post's masks are no labels (the token's id, or {IGNORED})")
        mask = [int(label != IGNORED) for label in labels[1:]]
        if any(mask):
            row = ShiftedRow(
                input_ids=tokens[:-1],
                target_ids=tokens[1:],
                mask=mask,
                logprobs=[0.0 if value == NOT_SAMPLED else value for value in logprobs[1:]],
                advantages=advantages[1:],
            )
            rows.append(row)
    return rows
