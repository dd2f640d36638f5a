"""A step in, a verdict out: whether it is Σ A ∇log π, on which scale, and otherwise what went wrong."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from environments.probe.canary_tokens import CanaryTokens, Flags, Numbers
from environments.probe.known_mistakes import known_mistakes
from environments.probe.step_scale import scale_of
from environments.probe.taken_steps import TakenStep
from environments.probe.tensor_files import Weights
from environments.probe.uneven_weights import left_out, uneven_groups, unevenness

EXACT = 0.9999
"""Cosine from which a step is the gradient: what is left is float32."""
_FITS = 0.999
_AS_GOOD = 1e-4
_NEARER = 5
"""How much less a mistake leaves unexplained than the policy gradient, if it is worth naming."""
_SEEN = 0.01
"""Share of what is expected that is worth a sentence."""
_TEMPERATURES = (*np.arange(0.3, 2.01, 0.05).round(2).tolist(), 2.5, 3.0, 4.0)
_COARSE = 6
"""How many temperatures are passed over before the nearest are tried."""
_HEATED = "log-probabilities are those of a temperature of about {}, and not of 1"
_UNSHIFTED = "tokens are held against the logits at their own place, and not at the place before"
_ABOVE_ROUNDING = 100
_FROZEN = (
    "the head did not move: is it frozen (LoRA: modules_to_save=['lm_head']), or did the trainer take no "
    "step?"
)
_ROUNDED = "float32 rounds a step that is this small: take it with a larger learning rate"
_SPREAD = "a little is wrong everywhere: several steps, or a small penalty"
_TURNED = "the sign is turned: it goes down where it should go up"
_UNKNOWN_SCALE = (
    "  no count of rows, groups or tokens is that factor: a standard deviation, a clipped norm or a schedule "
    "may be, and change it from step to step"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepVerdict:
    """What a trainer's step is, beside Σ A ∇log π."""

    exact: bool
    cosine: float
    """To Σ A ∇log π; 0.0 where the step is zero."""
    norm_ratio: float
    """The step's norm, by the learning rate, over that of Σ A ∇log π."""
    scale: str | None
    """What the norm ratio of an exact step is, where it is known."""
    findings: tuple[str, ...]
    """What is wrong, one sentence each; empty where it is exact."""
    source: str = "weights"
    """What the step was read from."""

    def __str__(self) -> str:
        scale = f" ({self.scale})" if self.scale else ""
        source = "" if self.source == "weights" else f", read from {self.source}"
        verdict = "exact" if self.exact else "wrong"
        head = f"{verdict}: cosine {self.cosine:.6f}, norm ratio {self.norm_ratio:.6g}{scale}{source}"
        notes = [_UNKNOWN_SCALE] if self.exact and self.scale is None else []
        return "\n".join([head, *(f"  {finding}" for finding in self.findings), *notes])


def diagnose(
    taken: TakenStep, tokens: CanaryTokens, *, batch_rows: int | None = None, divisor: int | None = None
) -> StepVerdict:
    """Say what a step is.

    Args:
        taken: the step.
        tokens: of the canaries.
        batch_rows: in the batch of a trainer behind the API.
        divisor: of the scores that it got.
    """
    step, expected = taken.head, tokens.gradient(tokens.advantages)
    if not np.isfinite(step).all():
        return _wrong(taken, 0.0, 0.0, "the step has numbers that are not finite")
    ratio = float(np.linalg.norm(step) / np.linalg.norm(expected))
    if ratio == 0:
        return _wrong(taken, 0.0, 0.0, _FROZEN)
    cosine = _cosine(step, expected)
    uneven = uneven_groups(tokens.weights_in(step), tokens)
    if cosine >= EXACT and not uneven:
        scale = scale_of(ratio, tokens, batch_rows=batch_rows, divisor=divisor, whole_norm=taken.whole_norm)
        return StepVerdict(
            exact=True, cosine=cosine, norm_ratio=ratio, scale=scale, findings=(), source=taken.source
        )
    if np.linalg.norm(step) < _ABOVE_ROUNDING * taken.rounding:
        return _wrong(taken, cosine, ratio, _ROUNDED)
    return _wrong(taken, cosine, ratio, *(_findings(step, tokens) or [uneven or _SPREAD]))


def _wrong(taken: TakenStep, cosine: float, ratio: float, *findings: str) -> StepVerdict:
    return StepVerdict(
        exact=False, cosine=cosine, norm_ratio=ratio, scale=None, findings=findings, source=taken.source
    )


def _findings(step: Weights, tokens: CanaryTokens) -> list[str]:
    step, tokens, around = _without_what_is_around(step, tokens)
    weights, rest = tokens.weights_in(step), _rest(step, tokens)
    mistake = _mistake_in(np.where(tokens.trained, weights, 0.0), tokens, certain=rest <= _SEEN)
    # What is no gradient of the tokens falls on all of them a little.
    noticed = np.abs(weights) > max(_SEEN, 2 * rest) * np.abs(weights).max()
    findings = [mistake, *_untrained(noticed & ~tokens.trained, tokens), *around]
    if rest > _SEEN:
        findings.append(
            f"{rest:.0%} of the step is no gradient of these tokens in their contexts: momentum, a penalty, "
            f"an entropy bonus, dropout, several steps, or other tokens before them (padding, rows cut in "
            f"front)"
        )
    return [finding for finding in findings if finding]


def _without_what_is_around(step: Weights, tokens: CanaryTokens) -> tuple[Weights, CanaryTokens, list[str]]:
    """The step without weight decay, the tokens at the step's temperature; and what is said of it."""
    rest = _rest(step, tokens)
    if rest <= _SEEN:
        return step, tokens, []
    decay = _decay_in(step, tokens)
    decayed = step - decay * tokens.model.head
    if decay < 0 and _rest(decayed, tokens) <= _SEEN:
        return decayed, tokens, [f"weights decay by {-decay:.2g} of themselves: weight_decay is not 0"]
    heated = {heat: tokens.at(heat) for heat in _TEMPERATURES[::_COARSE]}
    near = min(heated, key=lambda heat: _rest(step, heated[heat]))
    index = _TEMPERATURES.index(near)
    heated = {heat: tokens.at(heat) for heat in _TEMPERATURES[max(0, index - _COARSE) : index + _COARSE]}
    others = {_HEATED.format(heat): other for heat, other in heated.items()}
    others[_UNSHIFTED] = tokens.of(tokens.model, tokens.groups, unshifted=True)
    said = min(others, key=lambda said: _rest(step, others[said]))
    if _rest(step, others[said]) <= min(_SEEN, rest / _NEARER):
        return step, others[said], [said]
    return step, tokens, []


def _decay_in(step: Weights, tokens: CanaryTokens) -> float:
    """The share of the weights in what is no gradient of the tokens."""
    head = tokens.model.head
    rest_of_head = head - tokens.gradient(tokens.weights_in(head))
    return float((step * rest_of_head).sum() / (rest_of_head**2).sum())


def _rest(step: Weights, tokens: CanaryTokens) -> float:
    """The share of a step that is no gradient of the tokens."""
    return float(np.linalg.norm(step - tokens.gradient(tokens.weights_in(step))) / np.linalg.norm(step))


def _untrained(noticed: Flags, tokens: CanaryTokens) -> Iterator[str]:
    """What is said of tokens that have a weight and that nobody sampled."""
    prompts = tokens.flags("is_prompt")
    after, before = tokens.flags("is_after_turn"), tokens.flags("is_before_turn")
    if not noticed.any():
        return
    if not (noticed & ~after).any():
        yield "the token after a turn is trained: masks or advantages stand a token too late"
    elif not (noticed & ~before).any():
        yield "the token before a turn is trained: masks or advantages stand a token too early"
    else:
        if (noticed & prompts).any():
            yield "prompts are trained"
        if (noticed & ~prompts).any():
            yield "what tools and users say between turns is trained"


def _mistake_in(weights: Numbers, tokens: CanaryTokens, *, certain: bool) -> str:
    """The simplest known mistake that explains what sampled tokens weigh; empty: it is their advantages."""
    if not weights.any():
        return "no sampled token is trained"
    fit, said = _nearest(weights, tokens)
    if said and fit >= _FITS:
        return said
    plainly = _cosine(weights, tokens.advantages)
    nearer = bool(said) and (1 - fit**2) * _NEARER < 1 - plainly**2
    nearest = f"nearly ({fit:.3f}): {said}" if nearer else ""
    if not certain:
        return nearest
    missing, left = left_out(weights, tokens)
    part_fit, part_said = _nearest(weights, tokens, ~missing) if left else (0.0, "")
    if part_fit >= _FITS:
        return "; ".join(filter(None, [left, part_said]))
    if fit >= _FITS:
        return ""
    return "; ".join(filter(None, [unevenness(weights, tokens), nearest]))


def _nearest(weights: Numbers, tokens: CanaryTokens, where: Flags | None = None) -> tuple[float, str]:
    """How well the simplest of the mistakes that fit best does, of tokens `where`; and its sentences."""
    where = tokens.trained if where is None else where
    mistakes = known_mistakes(tokens)
    known = mistakes.weights[:, where]
    sizes = np.linalg.norm(known, axis=1) * np.linalg.norm(weights[where])
    fits = np.divide(known @ weights[where], sizes, out=np.zeros(len(known)), where=sizes > 0)
    good = np.flatnonzero(np.abs(fits) >= np.abs(fits).max() - _AS_GOOD).tolist()
    best = min(good, key=lambda index: (len(mistakes.sentences[index]), -abs(fits[index])))
    turned = [_TURNED] if fits[best] < 0 else []
    return float(abs(fits[best])), "; ".join([*mistakes.sentences[best], *turned])


def _cosine(one: Numbers, other: Numbers) -> float:
    size = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float((one * other).sum()) / size if size else 0.0
