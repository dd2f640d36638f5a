"""What constant a step is multiplied by: which of those that trainers divide by."""

from itertools import product

import numpy as np

from environments.probe.canary_tokens import CanaryTokens
from environments.trainers.canary import GROUP_SIZE

_SAME = 1e-3
_ROUND = 1e-4
"""Relative: a number that someone chose is met as well as float32 does."""
_LENGTHS = (64, 100)
"""Maximal lengths are multiples of these."""


def scale_of(
    ratio: float,
    tokens: CanaryTokens,
    *,
    batch_rows: int | None = None,
    divisor: int | None = None,
    whole_norm: float | None = None,
) -> str | None:
    """What a norm ratio is, in words; `None`: no constant of a trainer is known to be it.

    Args:
        ratio: of the norms of the step and of Σ A ∇log π.
        tokens: of the canaries.
        batch_rows: in the batch of a trainer behind the API.
        divisor: of the scores that it got.
        whole_norm: of the step of the whole model.
    """
    constants = _constants(tokens, batch_rows, divisor)
    for said, constant in constants.items():
        if abs(ratio / constant - 1) < _SAME:
            return said
    # numpy's and torch's.
    for deviation, (said, constant) in product(_deviations(tokens), constants.items()):
        if abs(ratio * deviation / constant - 1) < _ROUND:
            return f"{said}, 1/standard deviation of the advantages, another one in every step"
    if whole_norm and abs(float(f"{whole_norm:.2g}") / whole_norm - 1) < _ROUND:
        return f"clipped: the norm of the whole step is {whole_norm:.2g}, and larger ones would be that, too"
    # Who divides by a maximal length divides by rows, too.
    by_rows = [said for said in constants if " rows" in said and "tokens" not in said]
    for said, constant in ((said, constants[said]) for said in (*reversed(by_rows), "the sum")):
        length = round(constant / ratio)
        is_length = length > 0 and any(length % each == 0 for each in _LENGTHS)
        if is_length and abs(constant / ratio / length - 1) < _ROUND:
            return f"{said}, 1/{length}: a maximal length?"
    return None


def _deviations(tokens: CanaryTokens) -> list[float]:
    return [float(tokens.advantages[tokens.trained].std(ddof=ddof)) for ddof in (0, 1)]


def _constants(tokens: CanaryTokens, batch_rows: int | None, divisor: int | None) -> dict[str, float]:
    """By their names, the simplest first."""
    trajectories = [each for group in tokens.groups for each in group.group.trajectories]
    rows = [row for each in trajectories for row in each.rows]
    padded, longest = GROUP_SIZE * len(tokens.groups), max(len(row.token_ids) for row in rows)
    prompts = tokens.flags("is_prompt")
    completion = int(np.bincount(tokens.ids("row"), ~prompts).max())
    counts = {
        "rows of the batch": batch_rows,
        "rows": len(rows),
        f"rows, {GROUP_SIZE} of every group": padded,
        "rollouts": len(trajectories),
        "groups": len(tokens.groups),
        "turns": sum(len(each.turns) for each in trajectories),
        "trained tokens": int(tokens.trained.sum()),
        "tokens of completions": int((~prompts).sum()),
        "tokens of all rows": sum(len(row.token_ids) for row in rows),
        f"tokens of {padded} completions, padded to the longest": padded * completion,
        f"tokens of {padded} rows, padded to the longest": padded * longest,
    }
    constants = {"the sum": 1.0} | {f"1/{count} {name}": 1 / count for name, count in counts.items() if count}
    if divisor is None:
        return constants
    divided = {f"{name}, 1/score divisor {divisor}": each / divisor for name, each in constants.items()}
    return divided | constants
