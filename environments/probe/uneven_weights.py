"""What is uneven in the weights of tokens, in plain words, where no known mistake explains them."""

from collections.abc import Mapping

import numpy as np

from environments.probe.canary_tokens import CanaryTokens, Flags, Numbers
from environments.trainers.canary import GROUP_SIZE

_SAME = 0.01
"""Relative: factors that differ by less are equal, as 16-bit arithmetic makes them."""
_NONE = 1e-3
"""Share of the largest below which a weight or an advantage is none."""
_EXPLAINED = 0.999
"""Cosine from which weights are explained."""


def uneven_groups(weights: Numbers, tokens: CanaryTokens) -> str:
    """The sentence that says so; empty: all groups count alike."""
    of_groups = _factors(weights, tokens, "group")
    if max(of_groups.values()) - min(of_groups.values()) < _SAME:
        return ""
    said = ", ".join(
        f"{credited.group.item_id} x{of_groups[group]:.3g}" for group, credited in enumerate(tokens.groups)
    )
    return (
        f"groups do not weigh the same: {said}; is one there twice, or each micro-batch averaged on its own?"
    )


def left_out(weights: Numbers, tokens: CanaryTokens) -> tuple[Flags, str]:
    """The trained tokens that have no weight though they have an advantage; and which they are."""
    credit = np.abs(tokens.advantages)
    has_credit = tokens.trained & (credit > _NONE * credit.max())
    missing = has_credit & (np.abs(weights) < _NONE * np.abs(weights).max())
    present = has_credit & ~missing
    if not missing.any() or not present.any():
        return missing, ""
    rows, index = tokens.ids("row"), tokens.ids("index")
    gone = {*rows[missing].tolist()} - {*rows[present].tolist()}
    if np.isin(rows[missing], [*gone]).all():
        return missing, f"{len(gone)} of {rows.max() + 1} rows are not in the step: is all in one?"
    of_completion = (
        index - np.array([index[tokens.trained & (rows == row)][0] for row in np.unique(rows)])[rows]
    )
    for places, said in ((index, "row"), (of_completion, "completion")):
        if places[missing].min() > places[present].max():
            kept = places[missing].min()
            return missing, f"nothing after {kept} tokens of a {said} is trained: are they cut?"
    return missing, f"{missing.sum()} of {tokens.trained.sum()} sampled tokens are not in the step"


def unevenness(weights: Numbers, tokens: CanaryTokens) -> str:
    """At which level weights differ from advantages, from groups down to the tokens of a turn."""
    if _explained(weights, tokens, "group"):
        return uneven_groups(weights, tokens)
    if _explained(weights, tokens, "row"):
        return f"rows do not weigh the same: {_of_rows(weights, tokens)}"
    turns = tokens.ids("turn")
    means = np.array([weights[turns == turn].mean() for turn in range(turns.max() + 1)])
    if _cosine(weights, np.where(tokens.trained, means[turns], 0.0)) >= _EXPLAINED:
        clipped = _clipped(weights, tokens)
        if clipped:
            return clipped
        return f"turns have other weights than their advantages; farthest off is {_farthest(weights, tokens)}"
    return f"tokens of one turn do not weigh the same; farthest off is {_farthest(weights, tokens)}"


def _factors(weights: Numbers, tokens: CanaryTokens, name: str) -> Mapping[int, float]:
    """By how much the advantages of each group or row count, by least squares; their median is 1."""
    ids = tokens.ids(name)
    found: dict[int, float] = {}
    for each in np.unique(ids).tolist():
        inside = (ids == each) & tokens.trained
        advantages = tokens.advantages[inside]
        if advantages.any():
            found[each] = float(weights[inside] @ advantages / (advantages @ advantages))
    middle = float(np.median([*found.values()]))
    return {each: factor / (middle or 1.0) for each, factor in found.items()}


def _explained(weights: Numbers, tokens: CanaryTokens, name: str) -> bool:
    of_ids = _factors(weights, tokens, name)
    expected = [of_ids.get(each, 0.0) for each in tokens.ids(name).tolist()] * tokens.advantages
    return abs(_cosine(weights, expected)) >= _EXPLAINED


def _clipped(weights: Numbers, tokens: CanaryTokens) -> str:
    """Small advantages tell the scale, and the largest weight where they are cut."""
    sizes = np.abs(tokens.advantages)
    small = (sizes > 0) & (sizes <= np.median(sizes[sizes > 0]) / 2)
    scale = float(np.median(weights[small] / tokens.advantages[small]))
    limit = float(np.abs(weights).max()) / abs(scale) if scale else 0.0
    fit = _cosine(weights, np.clip(tokens.advantages, -limit, limit))
    return f"advantages are clipped at {limit:.2g}" if abs(fit) >= _EXPLAINED else ""


def _of_rows(weights: Numbers, tokens: CanaryTokens) -> str:
    of_rows = _factors(weights, tokens, "row")
    groups, rows = tokens.ids("group"), tokens.ids("row")
    return ", ".join(
        f"{credited.group.item_id} "
        + " ".join(
            f"x{of_rows[row]:.3g}" for row in np.unique(rows[groups == group]).tolist() if row in of_rows
        )
        for group, credited in enumerate(tokens.groups)
    )


def _farthest(weights: Numbers, tokens: CanaryTokens) -> str:
    """A turn of people, who count from 1."""
    scale = float(np.linalg.norm(tokens.advantages) / np.linalg.norm(weights))
    weights = weights * np.copysign(scale, weights @ tokens.advantages)
    token = int(np.abs(weights - tokens.advantages).round(6).argmax())
    fact = tokens.facts[token]
    first = min(each.turn for each in tokens.facts if each.trajectory == fact.trajectory and each.turn >= 0)
    group = tokens.groups[fact.group].group
    return (
        f"token {fact.offset + 1} of turn {fact.turn - first + 1} of rollout "
        f"{fact.trajectory % GROUP_SIZE + 1} of the canary {group.item_id!r}, with the advantage "
        f"{fact.advantage:.3g} and the weight {weights[token]:.3g}"
    )


def _cosine(one: Numbers, other: Numbers) -> float:
    size = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float((one * other).sum()) / size if size else 0.0
