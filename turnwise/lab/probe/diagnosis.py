"""The verdict on a trainer's step: whether it is Σ A ∇log π, on which scale, or else what went wrong."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from environments.trajectory import CreditedGroup
from environments.wire.credited_rows import credited_rows
from turnwise.lab.probe.canaries import GROUP_SIZE, LONG
from turnwise.lab.probe.canary_model import CanaryModel, Weights
from turnwise.lab.probe.step_reading import TrainerStep

Numbers = NDArray[np.float64]
Flags = NDArray[np.bool_]
Ids = NDArray[np.int64]
WeightOf = Callable[["CanaryTokens"], Numbers]

EXACT = 0.9999
"""Cosine from which a step is the gradient, up to float32."""
_FITS = 0.999
_AS_GOOD = 1e-4
_NEARER = 5
"""A mistake is named if it leaves this many times less unexplained than the policy gradient."""
_SEEN = 0.01
"""Share from which a deviation is reported; factors that differ by less count as equal."""
_SEEN_OF_TURNS = 0.2
"""`_SEEN` for factors of turns, which are rounded more."""
_NONE = 1e-3
"""Share of the largest weight below which a weight counts as 0."""
_KNOWN_SCALE = 1e-3
_LEAST_BONUS = 0.002
"""Smallest entropy bonus that is reported; float32 rounding can look like a smaller one."""
_NEAR = 16
_ABOVE_ROUNDING = 100
_UNKNOWN_SCALE = (
    "  no count of rows, groups or tokens is that factor: a maximal length, a standard deviation, a clipped "
    "norm or a schedule may be, and the last three change it from step to step"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepVerdict:
    exact: bool
    cosine: float
    """Cosine to Σ A ∇log π; 0.0 for a zero step."""
    norm_ratio: float
    """Norm of the step divided by the learning rate, over the norm of Σ A ∇log π."""
    scale: str | None
    findings: tuple[str, ...]
    source: str = "weights"

    def __str__(self) -> str:
        scale = f" ({self.scale})" if self.scale else ""
        source = "" if self.source == "weights" else f", read from {self.source}"
        verdict = "exact" if self.exact else "wrong"
        head = f"{verdict}: cosine {self.cosine:.6f}, norm ratio {self.norm_ratio:.6g}{scale}{source}"
        notes = [_UNKNOWN_SCALE] if self.exact and self.scale is None else []
        return "\n".join([head, *(f"  {finding}" for finding in self.findings), *notes])


@dataclass(frozen=True)
class CanaryTokens:
    """The tokens in and near turns of the canaries, without each row's first, and their gradients."""

    groups: Sequence[CreditedGroup]
    columns: Mapping[str, NDArray[Any]]
    """`group`, `rollout`, `row`, `index` in the row, `turn` (-1: not sampled), `id`, `advantage`, the
    rollout's `score`, `is_prompt`, `is_later_row` (of a condensed rollout) and `is_long`."""
    errors: Weights
    """One-hot minus probabilities, (tokens, VOCABULARY)."""
    hidden: Weights
    """Hidden states before the head, (tokens, WIDTH): a token's ∇log π is `errors` ⊗ `hidden`."""

    @classmethod
    def of(cls, model: CanaryModel, groups: Sequence[CreditedGroup]) -> "CanaryTokens":
        each: list[dict[str, NDArray[Any]]] = []
        errors: list[Weights] = []
        hidden: list[Weights] = []
        for group, credited in enumerate(groups):
            for row in credited_rows(credited):
                turns = np.full(len(row.tokens), -1)
                for turn in row.turns:
                    turns[turn.span.start : turn.span.end] = turn.index
                same = {
                    "group": group,
                    "rollout": row.trajectory.sibling,
                    "row": len(each),
                    "score": row.trajectory.score,
                    "is_later_row": any(turn.span.row > 0 for turn in row.turns),
                    "is_long": len(row.tokens) > LONG,
                }
                columns = {name: np.full(len(turns), value) for name, value in same.items()} | {
                    "index": np.arange(len(turns)),
                    "turn": turns,
                    "id": np.array(row.tokens),
                    "advantage": np.array(row.advantages),
                    "is_prompt": np.cumsum(turns >= 0) == 0,
                }
                near = np.convolve(columns["turn"] >= 0, np.ones(2 * _NEAR + 1))[_NEAR + 1 : -_NEAR] > 0
                each.append({name: column[1:][near] for name, column in columns.items()})
                states, log_p = model.forward(row.tokens)
                errors.append(-np.exp(log_p[:-1][near]))
                errors[-1][np.arange(len(errors[-1])), each[-1]["id"]] += 1.0
                hidden.append(states[:-1][near])
        columns = {name: np.concatenate([row[name] for row in each]) for name in each[0]}
        return cls(groups, columns, np.concatenate(errors), np.concatenate(hidden))

    def gradient(self, weights: Numbers) -> Weights:
        """Return Σ weight · ∇log π for the head, (VOCABULARY, WIDTH)."""
        return self.errors.T @ (weights[:, None] * self.hidden)

    def weights_in(self, step: Weights) -> Numbers:
        return self._inverse @ ((self.errors @ step) * self.hidden).sum(axis=1)

    def unexplained(self, step: Weights) -> float:
        """Return the share of a step's norm that no combination of the tokens' gradients explains."""
        left = step - self.gradient(self.weights_in(step))
        return float(np.linalg.norm(left) / np.linalg.norm(step))

    @cached_property
    def of_entropy(self) -> Weights:
        p = -self.errors
        p[np.arange(len(p)), self.columns["id"]] += 1.0
        surprise = -np.log(np.maximum(p, np.finfo(float).tiny))
        slope = p * (surprise - (p * surprise).sum(axis=1, keepdims=True))
        return slope.T @ (self.trained[:, None] * self.hidden)

    @cached_property
    def _inverse(self) -> Weights:
        products = (self.errors @ self.errors.T) * (self.hidden @ self.hidden.T)
        return cast("Weights", np.linalg.inv(products))

    @cached_property
    def trained(self) -> Flags:
        return self.columns["turn"] >= 0

    @property
    def advantages(self) -> Numbers:
        return self.columns["advantage"]

    def units(self, level: str) -> Ids:
        row = self.columns["row"]
        ids = 1000 * row + self.columns["turn"] if level == "turn" else self.columns[level]
        return np.unique(ids, return_inverse=True)[1]


def diagnose(
    trainer_step: TrainerStep,
    tokens: CanaryTokens,
    model: CanaryModel,
    *,
    batch_rows: int | None = None,
    divisor: int | None = None,
) -> StepVerdict:
    step, expected = trainer_step.head, tokens.gradient(tokens.advantages)
    is_finite = bool(np.isfinite(step).all())
    ratio = float(np.linalg.norm(step) / np.linalg.norm(expected)) if is_finite else 0.0
    cosine = _cosine(step, expected) if is_finite else 0.0
    exact, scale, findings = False, None, list[str]()
    if not is_finite:
        findings.append("the step has numbers that are not finite")
    elif ratio == 0:
        findings.append(
            "the head did not move: is it frozen (LoRA: modules_to_save=['lm_head']), or did the trainer "
            "take no step?"
        )
    elif (
        cosine >= EXACT
        and not _has_uneven_factors(tokens.weights_in(step), tokens)
        and not _without_entropy(step, tokens)[1]
    ):
        exact, scale = True, _scale_of(ratio, tokens, batch_rows, divisor)
    elif np.linalg.norm(step) < _ABOVE_ROUNDING * trainer_step.rounding:
        findings.append("float32 rounds a step that is this small: take it with a larger learning rate")
    else:
        findings = _findings(step, tokens, model)
    return StepVerdict(
        exact=exact,
        cosine=cosine,
        norm_ratio=ratio,
        scale=scale,
        findings=tuple(findings),
        source=trainer_step.source,
    )


def _findings(step: Weights, tokens: CanaryTokens, model: CanaryModel) -> list[str]:
    step, beside = _without_decay(step, tokens, model)
    step, bonus = _without_entropy(step, tokens)
    weights, rest = tokens.weights_in(step), tokens.unexplained(step)
    sampled = np.where(tokens.trained, weights, 0.0)
    fit, findings = _nearest(sampled, tokens)
    if fit < _FITS or not findings:
        plainly = _cosine(sampled, tokens.advantages)
        is_near = findings and (1 - fit**2) * _NEARER < 1 - plainly**2
        nearly = [f"nearly ({fit:.3f}): {findings[0]}"] if is_near else []
        located = _first_difference(sampled, tokens) if rest <= _SEEN else ""
        findings = ([located] if located else []) + nearly
    # The part of the step that is not a gradient of the tokens adds a little to every weight.
    noticed = ~tokens.trained & (np.abs(weights) > max(_SEEN, 2 * rest) * np.abs(weights).max())
    if (noticed & tokens.columns["is_prompt"]).any():
        findings.append("prompts are trained")
    if (noticed & ~tokens.columns["is_prompt"]).any():
        findings.append("what tools and users say between turns is trained")
    findings += beside + bonus
    if rest > _SEEN:
        findings.append(
            f"{rest:.0%} of the step is not a gradient of these tokens in their contexts: momentum, a "
            f"penalty, an entropy bonus, a temperature, dropout, several steps, or other tokens before them "
            f"(padding, rows cut in front)"
        )
    return findings or ["a little is wrong everywhere: several steps, or a small penalty"]


def _without_decay(step: Weights, tokens: CanaryTokens, model: CanaryModel) -> tuple[Weights, list[str]]:
    if tokens.unexplained(step) <= _SEEN:
        return step, []
    rest_of_head = model.head - tokens.gradient(tokens.weights_in(model.head))
    decay = float((step * rest_of_head).sum() / (rest_of_head**2).sum())
    decayed = step - decay * model.head
    if decay >= 0 or tokens.unexplained(decayed) > _SEEN:
        return step, []
    return decayed, [f"weights decay by {-decay:.2g} of themselves: weight_decay is not 0"]


def _without_entropy(step: Weights, tokens: CanaryTokens) -> tuple[Weights, list[str]]:
    left, apart = (each - tokens.gradient(tokens.weights_in(each)) for each in (step, tokens.of_entropy))
    bonus = float((left * apart).sum() / (apart**2).sum())
    rest = float(np.linalg.norm(left - bonus * apart))
    without = step - bonus * tokens.of_entropy
    share = bonus / _middle(_factors(tokens.weights_in(without), tokens, "row"))
    if abs(share) < _LEAST_BONUS or rest > np.linalg.norm(left) / 2:
        return step, []
    return without, [f"entropy is rewarded with {share:.2g} at every token, beside advantages"]


# Mistakes of trainers: each is a weight per token, and a sentence.


def combine_mistakes(tokens: CanaryTokens) -> dict[tuple[str, ...], Numbers]:
    """Return the weights of each combination of mistakes, by its sentences; () for no mistake."""
    return {
        tuple(filter(None, sentences)): np.where(
            tokens.trained & (_KEPT[sentences[2]](tokens) > 0),
            _CREDIT[sentences[0]](tokens) / _DIVISOR[sentences[1]](tokens),
            0.0,
        )
        for sentences in product(_CREDIT, _DIVISOR, _KEPT)
    }


def _sums(level: str, numbers: Numbers, tokens: CanaryTokens) -> Numbers:
    """Sum over the trained tokens of each group, row or turn; return the sum for each token."""
    units = tokens.units(level)
    sums = np.bincount(units, np.where(tokens.trained, numbers, 0.0)).astype(np.float64)
    return sums[units]


def _lengths(level: str) -> WeightOf:
    return lambda tokens: np.maximum(_sums(level, np.ones(len(tokens.trained)), tokens), 1.0)


def _normalise_scores(tokens: CanaryTokens) -> Numbers:
    score, groups = tokens.columns["score"], tokens.columns["group"]
    _, firsts = np.unique(tokens.columns["row"], return_index=True)
    of_rows = [score[firsts[groups[firsts] == group]] for group in np.unique(groups)]
    mean, deviation = (np.array([number(each) for each in of_rows])[groups] for number in (np.mean, np.std))
    return (score - mean) / deviation


def _whiten_advantages(tokens: CanaryTokens) -> Numbers:
    trained = tokens.advantages[tokens.trained]
    return (tokens.advantages - trained.mean()) / trained.std()


_CREDIT: Mapping[str, WeightOf] = {
    "": lambda tokens: tokens.advantages,
    "advantages are ignored: scores of rows are used, normalised in each group": _normalise_scores,
    "advantages are normalised over all tokens of the batch": _whiten_advantages,
    "the mean of its group is taken off every advantage once more": lambda tokens: (
        tokens.advantages - _sums("group", tokens.advantages, tokens) / _lengths("group")(tokens)
    ),
    "every token of a row gets the sum of its row's advantages": lambda tokens: _sums(
        "row", tokens.advantages, tokens
    ),
    "masks are labels and are taken for numbers: a token weighs its id": lambda tokens: (
        tokens.advantages * tokens.columns["id"]
    ),
}
_DIVISOR: Mapping[str, WeightOf] = {
    "": lambda tokens: np.ones(len(tokens.trained)),
    "turns weigh 1/their own length: a turn of L tokens counts as one of 1 token": _lengths("turn"),
    "rows weigh 1/their trained tokens": _lengths("row"),
}
_KEPT: Mapping[str, WeightOf] = {
    "": lambda tokens: np.ones(len(tokens.trained)),
    "negative advantages are ignored": lambda tokens: tokens.advantages,
    "rows after the first of a forked rollout are ignored": lambda tokens: ~tokens.columns["is_later_row"],
    f"rows of more than {LONG:,} tokens are ignored: a maximal length is too small": lambda tokens: (
        ~tokens.columns["is_long"]
    ),
    f"what comes after {LONG:,} tokens of a row is ignored: a maximal length cuts it": lambda tokens: (
        np.where(tokens.columns["index"] < LONG, 1.0, 0.0)
    ),
}


def _nearest(weights: Numbers, tokens: CanaryTokens) -> tuple[float, list[str]]:
    if not weights.any():
        return 1.0, ["no sampled token is trained"]
    fits = {sentences: _cosine(known, weights) for sentences, known in combine_mistakes(tokens).items()}
    least = max(map(abs, fits.values())) - _AS_GOOD
    good = [sentences for sentences, fit in fits.items() if abs(fit) >= least]
    best = min(good, key=lambda sentences: (len(sentences), -abs(fits[sentences])))
    turned = ["the sign is turned: it goes down where it should go up"] if fits[best] < 0 else []
    named = "; ".join([*best, *turned])
    return abs(fits[best]), [named] if named else []


# If no known mistake explains a step: the level at which weights differ, and the first such token.


def _factors(weights: Numbers, tokens: CanaryTokens, level: str) -> Numbers:
    units = tokens.units(level)
    products = np.bincount(units, weights * tokens.advantages)
    squares = np.bincount(units, tokens.advantages**2)
    return np.divide(products, squares, out=np.zeros(len(squares)), where=squares > 0)


def _middle(factors: Numbers) -> float:
    present = factors[np.abs(factors) > _NONE * np.abs(factors).max()]
    return float(np.median(present)) if len(present) else 1.0


def _first_difference(weights: Numbers, tokens: CanaryTokens) -> str:
    """Describe the level at which weights differ from advantages, and the first such token; "" for none."""
    weights = weights / _middle(_factors(weights, tokens, "row"))
    off = np.abs(weights - tokens.advantages) > _SEEN * np.abs(tokens.advantages).max()
    if not off.any() or (
        _cosine(weights, tokens.advantages) >= _FITS and not _has_uneven_factors(weights, tokens)
    ):
        return ""
    first = int(np.flatnonzero(off)[0])
    at = {name: column[first] for name, column in tokens.columns.items()}
    canary = tokens.groups[int(at["group"])].group.item_id
    return (
        f"{_level_of(weights, tokens)} do not weigh the same; the first is token {at['index'] + 1} of its "
        f"row, in turn {at['turn'] + 1} of rollout {at['rollout'] + 1} of the canary {canary!r}: advantage "
        f"{at['advantage']:.3g}, weight {round(weights[first], 6) + 0.0:.3g}"
    )


def _has_uneven_factors(weights: Numbers, tokens: CanaryTokens) -> bool:
    """Whether groups or turns have unequal factors, which the cosine hides for small ones."""
    for level, seen in (("group", _SEEN), ("turn", _SEEN_OF_TURNS)):
        factors = _factors(weights, tokens, level)
        has_credit = np.bincount(tokens.units(level), tokens.advantages**2) > 0
        if np.ptp(factors[has_credit]) >= seen * abs(_middle(factors)):
            return True
    return False


def _level_of(weights: Numbers, tokens: CanaryTokens) -> str:
    for level in ("group", "row", "turn"):
        factors = _factors(weights, tokens, level)
        explained = factors[tokens.units(level)] * tokens.advantages
        left = np.abs(weights - explained).max()
        if abs(_cosine(weights, explained)) >= _FITS and left <= 2 * _SEEN * np.abs(weights).max():
            break
    else:
        return "tokens of one turn"
    if level != "group":
        return f"{level}s"
    names = [credited.group.item_id for credited in tokens.groups]
    of_middle = factors / _middle(factors)
    shown = ", ".join(f"{name} x{factor:.3g}" for name, factor in zip(names, of_middle, strict=True))
    return f"groups ({shown})"


def _scale_of(ratio: float, tokens: CanaryTokens, batch_rows: int | None, divisor: int | None) -> str | None:
    """Describe a norm ratio by a count that trainers divide by, the simplest first; None without a match."""
    trajectories = [each for group in tokens.groups for each in group.group.trajectories]
    counts = {
        "rows of the batch": batch_rows,
        "rows": sum(len(each.rows) for each in trajectories),
        f"rows, {GROUP_SIZE} of every group": GROUP_SIZE * len(tokens.groups),
        "rollouts": len(trajectories),
        "groups": len(tokens.groups),
        "trained tokens": int(tokens.trained.sum()),
    }
    scales = {"the sum": 1.0} | {f"1/{count} {name}": 1 / count for name, count in counts.items() if count}
    if divisor is not None:
        divided = {f"{name}, 1/score divisor {divisor}": each / divisor for name, each in scales.items()}
        scales = divided | scales
    return next((name for name, each in scales.items() if abs(ratio / each - 1) < _KNOWN_SCALE), None)


def _cosine(one: Numbers, other: Numbers) -> float:
    size = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float((one * other).sum()) / size if size else 0.0
