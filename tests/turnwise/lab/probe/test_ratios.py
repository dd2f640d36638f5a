"""Of stale canaries, what a trainer does with ratios is read from its step."""

import numpy as np
import pytest

from turnwise.lab.probe.diagnosis import CanaryTokens
from turnwise.lab.probe.ratios import diagnose_ratios
from turnwise.lab.probe.step_reading import TakenStep
from turnwise.lab.probe.trainer_probe import Asked, begin_probe, probe_trainer


@pytest.fixture(scope="module")
def stale(tmp_path_factory):
    probe = begin_probe(tmp_path_factory.mktemp("stale"), Asked(lr=1.0, is_stale=True))
    return CanaryTokens.of(probe.before, probe.groups)


def clipped(ratio, advantage, low=0.8, high=1.2):
    return ratio * np.where(advantage > 0, ratio < high, ratio > low)


RULES = {
    "a token weighs 1": lambda ratio, advantage: np.ones(len(ratio)),
    "a token weighs its ratio": lambda ratio, advantage: ratio,
    "a token weighs its ratio, and 0 above 1.2 where A > 0, and 0 below 0.8 where A < 0": clipped,
    "a token weighs its ratio, and 0 above 1.28 where A > 0, and 0 below 0.8 where A < 0": (
        lambda ratio, advantage: clipped(ratio, advantage, high=1.28)
    ),
    "a token weighs 1, and 0 above 2 and below 0.5 where A > 0, and 0 above 2 and below 0.5 where A < 0": (
        lambda ratio, advantage: (ratio < 2) & (ratio > 0.5)
    ),
    "a token weighs its ratio, truncated to 0.15 … 2": lambda ratio, advantage: np.minimum(ratio, 2.0),
    "a token weighs its ratio, truncated to 0.8 … 1.2": lambda ratio, advantage: np.clip(ratio, 0.8, 1.2),
}


@pytest.mark.parametrize(("rule", "weigh"), RULES.items(), ids=RULES)
def test_the_rule_that_makes_weights_of_ratios_is_named(stale, rule, weigh):
    weights = weigh(stale.columns["ratio"], stale.advantages) * stale.advantages
    verdict = diagnose_ratios(TakenStep(head=stale.gradient(weights) / 15, source="weights"), stale)

    assert (verdict.exact, verdict.ratios, verdict.findings) == (True, rule, ())


@pytest.mark.parametrize("scale", [0.0, np.nan, 1.0], ids=["none", "nan", "another"])
def test_a_step_by_no_known_rule_is_wrong(stale, scale):
    weights = stale.advantages * np.sqrt(stale.columns["ratio"]) * scale
    verdict = diagnose_ratios(TakenStep(head=stale.gradient(weights), source="weights"), stale)

    assert not verdict.exact
    assert str(verdict).startswith("stale: ratios weigh tokens by no rule that is known here")


def test_a_function_takes_the_step_of_stale_canaries():
    def step(probe):
        tokens = CanaryTokens.of(probe.before, probe.groups)
        return {"lm_head.weight": probe.before.head + probe.lr * tokens.gradient(tokens.advantages)}

    assert str(probe_trainer(step, is_stale=True)) == "stale: a token weighs 1"
