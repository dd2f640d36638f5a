"""A step in, a verdict out: whether it is Σ A ∇log π, on which scale, and otherwise what went wrong."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from environments.probe.canary_tokens import CanaryTokens, Flags, Numbers
from environments.probe.known_mistakes import known_mistakes
from environments.probe.tensor_files import Weights
from tools.errors import ConfigError

EXACT = 0.9999
"""Cosine from which a step is the gradient: what is left is float32."""
_FITS = 0.999
_NEARLY = 0.95
_AS_GOOD = 1e-4
_SEEN = 0.01
"""Share of what is expected that is worth a sentence."""
_SAME_SCALE = 1e-3
_ADAM = 0.02
_ABOVE_ROUNDING = 100
_ROUNDED = "float32 rounds a step that is this small: take it with a larger learning rate"
_SPREAD = "a little is wrong everywhere: several steps, or a small penalty"
_TURNED = "the sign is turned: it goes down where it should go up"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepVerdict:
    """What a trainer's step is, beside Σ A ∇log π."""

    exact: bool
    cosine: float
    """To Σ A ∇log π; 0.0 where the step is zero."""
    norm_ratio: float
    """The step's norm, by the learning rate, over that of Σ A ∇log π."""
    scale: str | None
    """What the norm ratio is, where it is known."""
    findings: tuple[str, ...]
    """What is wrong, one sentence each; empty where it is exact."""

    def __str__(self) -> str:
        scale = f" ({self.scale})" if self.scale else ""
        verdict = "exact" if self.exact else "wrong"
        head = f"{verdict}: cosine {self.cosine:.6f}, norm ratio {self.norm_ratio:.6g}{scale}"
        return "\n".join([head, *(f"  {finding}" for finding in self.findings)])


def diagnose(
    step: Weights, tokens: CanaryTokens, scales: Mapping[str, float], *, rounding: float = 0.0
) -> StepVerdict:
    """Say what a step is.

    Args:
        step: of the head, by the learning rate; weights after less weights before.
        tokens: of the canaries.
        scales: constants that trainers multiply the gradient by, by name.
        rounding: the norm of what the type of the weights rounds off a step.

    Raises:
        ConfigError: it is a step of Adam, of which the signs alone are left.
    """
    if not np.isfinite(step).all():
        return _wrong(0.0, 0.0, "the step has numbers that are not finite")
    expected = tokens.gradient(tokens.advantages)
    ratio = float(np.linalg.norm(step) / np.linalg.norm(expected))
    if ratio == 0:
        return _wrong(0.0, 0.0, "the head did not move: is it frozen, or did the trainer take no step?")
    _refuse_adam(step)
    cosine = _cosine(step, expected)
    scale = next((name for name, value in scales.items() if abs(ratio / value - 1) < _SAME_SCALE), None)
    if cosine >= EXACT:
        return StepVerdict(exact=True, cosine=cosine, norm_ratio=ratio, scale=scale, findings=())
    if np.linalg.norm(step) < _ABOVE_ROUNDING * rounding:
        return _wrong(cosine, ratio, _ROUNDED)
    return _wrong(cosine, ratio, *(_findings(step, tokens) or [_SPREAD]))


def _wrong(cosine: float, ratio: float, *findings: str) -> StepVerdict:
    return StepVerdict(exact=False, cosine=cosine, norm_ratio=ratio, scale=None, findings=findings)


def _findings(step: Weights, tokens: CanaryTokens) -> list[str]:
    weights = tokens.weights_in(step)
    rest = float(np.linalg.norm(step - tokens.gradient(weights)) / np.linalg.norm(step))
    # What is no gradient of the tokens falls on all of them a little.
    noticed = max(_SEEN, 2 * rest) * np.abs(weights).max()
    untrained = {
        "prompts are trained": tokens.flags("is_prompt"),
        "what tools and users say between turns is trained": ~tokens.flags("is_prompt") & ~tokens.trained,
    }
    findings = [_mistake_in(np.where(tokens.trained, weights, 0.0), tokens, certain=rest <= _SEEN)]
    findings += [said for said, where in untrained.items() if np.abs(weights[where]).max() > noticed]
    if rest > _SEEN:
        findings.append(
            f"{rest:.0%} of the step is no gradient of these tokens in their contexts: weight decay, "
            f"momentum, a penalty or an entropy bonus, dropout, several steps, or other tokens before them"
        )
    return [finding for finding in findings if finding]


def _mistake_in(weights: Numbers, tokens: CanaryTokens, *, certain: bool) -> str:
    """The simplest known mistake that explains what sampled tokens weigh; empty: it is their advantages."""
    if not weights.any():
        return "no sampled token is trained"
    fit, said = _nearest(weights, tokens)
    if fit < _NEARLY and certain:
        left, missing = _part_of_batch(weights, tokens)
        part_fit, part_said = _nearest(weights, tokens, left)
        if missing and part_fit >= _FITS:
            return "; ".join(filter(None, [f"{missing} are not in the step: is all in one?", part_said]))
    if fit >= _FITS or (not said and not certain):
        return said
    known = "nearly" if fit >= _NEARLY else "no known mistake explains what the tokens weigh; nearest"
    return f"{known} ({fit:.3f}): {said or 'the policy gradient'}"


def _nearest(weights: Numbers, tokens: CanaryTokens, where: Flags | None = None) -> tuple[float, str]:
    """How well the simplest of the mistakes that fit best does, of tokens `where`; and its sentences."""
    weights = weights if where is None else weights[where]
    fits = [
        (_cosine(weights, each.weights if where is None else each.weights[where]), each)
        for each in known_mistakes(tokens)
    ]
    best = max(abs(fit) for fit, _ in fits)
    good = [(fit, each) for fit, each in fits if abs(fit) >= best - _AS_GOOD]
    fit, mistake = min(good, key=lambda pair: (len(pair[1].sentences), -abs(pair[0])))
    return abs(fit), "; ".join([*mistake.sentences, *([_TURNED] if fit < 0 else [])])


def _part_of_batch(weights: Numbers, tokens: CanaryTokens) -> tuple[Flags, str]:
    """The tokens of rows that are in a step, and how many rows are not."""
    rows, count = np.unique(tokens.ids("row"), return_inverse=True)
    sizes = np.maximum.reduceat(np.abs(weights), np.searchsorted(tokens.ids("row"), rows))
    inside = sizes > _SEEN * sizes.max()
    missing = int((~inside).sum())
    return inside[count], f"{missing} of {len(rows)} rows" if missing else ""


def _refuse_adam(step: Weights) -> None:
    """The first step of Adam has one size wherever there is a gradient."""
    sizes = np.abs(step[np.abs(step) > _SEEN * np.abs(step).max()])
    if len(sizes) > step.size / 10 and sizes.std() < _ADAM * sizes.mean():
        raise ConfigError(
            f"every weight moved by {sizes.mean():.3g} times the learning rate: a step of Adam, which leaves "
            f"the signs alone; take it with plain SGD, or save the gradient and read that"
        )


def _cosine(one: Numbers, other: Numbers) -> float:
    size = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float((one * other).sum()) / size if size else 0.0
