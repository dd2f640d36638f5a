"""What a trainer does with stale canaries: by what the ratio of new to old probability weighs a token."""

import numpy as np

from turnwise.lab.probe.canary_model import Weights
from turnwise.lab.probe.diagnosis import CanaryTokens, Flags, Numbers, StepVerdict
from turnwise.lab.probe.step_reading import TakenStep

_SEEN = 0.03
"""By how much a weight differs from that of a rule, at least, if it is another one."""
_UNKNOWN = (
    "ratios weigh tokens by no rule that is known here, or the step is not exact without --stale either"
)


def diagnose_ratios(taken: TakenStep, tokens: CanaryTokens) -> StepVerdict:
    """Returns the verdict on a step of stale canaries: the rule that makes weights of ratios.

    A weight is what a token's A ∇log π counts in the step, over what it counts where the ratio is 1.
    """
    step, expected = taken.head, tokens.gradient(tokens.advantages)
    size = float(np.linalg.norm(step))
    cosine = float((step * expected).sum() / np.linalg.norm(expected)) / size if size else 0.0
    rule = _rule_of(step, tokens) if np.isfinite(cosine) and size else None
    return StepVerdict(
        exact=rule is not None,
        cosine=cosine,
        norm_ratio=size / float(np.linalg.norm(expected)),
        scale=None,
        findings=() if rule else (_UNKNOWN,),
        source=taken.source,
        ratios=rule or _UNKNOWN,
    )


def _rule_of(step: Weights, tokens: CanaryTokens) -> str | None:
    credited = tokens.advantages != 0
    ratio, is_up = tokens.columns["ratio"][credited], tokens.advantages[credited] > 0
    weight = tokens.weights_in(step)[credited] / tokens.advantages[credited]
    unit = np.median(weight[np.abs(ratio - 1) < 1e-6])
    if not unit:
        return None
    weight = weight / unit
    kept = np.abs(weight) > _SEEN
    for name, whole in (("1", np.ones(len(ratio))), ("its ratio", ratio)):
        if _fits(weight[kept], whole[kept]):
            cuts = [_cut(ratio[of], kept[of], sign) for of, sign in ((is_up, ">"), (~is_up, "<"))]
            return None if None in cuts else f"a token weighs {name}{''.join(map(str, cuts))}"
    low, high = float(weight.min()), float(weight.max())
    if _fits(weight, np.clip(ratio, low, high)):
        return f"a token weighs its ratio, truncated to {low:.3g} … {high:.3g}"
    return None


def _cut(ratio: Numbers, kept: Flags, sign: str) -> str | None:
    """Where tokens count nothing: above and below a ratio; `None`: elsewhere, too."""
    low, high = ratio[kept].min(), ratio[kept].max()
    if (~kept & (low < ratio) & (ratio < high)).any():
        return None
    above, below = ratio[ratio > high], ratio[ratio < low]
    bounds = [f" above {(high + above.min()) / 2:.3g}"] if len(above) else []
    bounds += [f" below {(low + below.max()) / 2:.3g}"] if len(below) else []
    return f", and 0{' and'.join(bounds)} where A {sign} 0" if bounds else ""


def _fits(weight: Numbers, rule: Numbers) -> bool:
    return bool((np.abs(weight - rule) <= _SEEN * np.maximum(1.0, rule)).all())
