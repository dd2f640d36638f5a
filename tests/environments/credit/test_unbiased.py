"""Unbiasedness as a fact: expected gradients over every possible group, against the true gradient."""

from dataclasses import replace

import numpy as np
import pytest

from environments.credit import estimate
from tests.benchmarks import stale_turns
from tests.benchmarks.credit_bias import (
    Expectation,
    Market,
    a_policy,
    cosine,
    separate_streams,
)

UNBIASED = {
    "loo_index": ("turn_return", {"baseline": "loo_index"}, 1.0),
    "loo_total": ("turn_return", {"baseline": "loo_total"}, 1.0),
    "group_mean": ("turn_return", {"baseline": "group_mean"}, None),
    "no_baseline": ("turn_return", {"baseline": "none"}, 1.0),
    "rloo": ("rloo", {}, 1.0),
    "grpo_without_std": ("grpo", {"norm_by_std": False}, None),
    "turn_gae": ("turn_gae", {}, 1.0),
}


@pytest.fixture(scope="module", params=[2, 3], ids=["two_turns", "three_turns"])
def market(request):
    return Market(request.param)


def expected_gradient(market, size, logits, name, params):
    return Expectation(market, size, lambda group: estimate(name, group, **params)).gradient(logits)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("case", UNBIASED)
def test_the_expected_gradient_has_the_length_that_the_bias_note_says(market, case, size):
    name, params, scale = UNBIASED[case]
    logits, shrunk = a_policy(), (size - 1) / size
    true = market.gradient(logits)

    gradient = expected_gradient(market, size, logits, name, params)

    assert gradient == pytest.approx((shrunk if scale is None else scale) * true, abs=1e-12)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("grpo", {}),
        ("gigpo", {"gamma": 1.0, "mode": "mean_std_norm"}),
        ("mt_grpo", {}),
        ("process_supervision", {}),
        ("igpo", {"streams": "separate"}),
        ("gagpo", {}),
        ("passk", {}),
    ],
)
def test_estimators_marked_as_biased_are(name, params):
    market, logits = Market(3), a_policy()

    assert cosine(expected_gradient(market, 2, logits, name, params), market.gradient(logits)) < 0.99


@pytest.mark.parametrize("size", [2, 3])
def test_a_baseline_weighed_by_length_is_biased_slightly(size):
    market, logits = Market(3), a_policy()
    of = cosine(expected_gradient(market, size, logits, "opo", {}), market.gradient(logits))

    assert 1e-3 < 1 - of < 0.01


def test_separately_normalised_streams_learn_to_chat_for_ever_where_turn_return_converts():
    market = Market(3)
    converts = np.array([session.outcome for session in market.sessions])

    def conversion(weigh):
        reached = Expectation(market, 2, weigh).learned(steps=400)
        return market.probabilities(reached) @ converts

    assert conversion(separate_streams) < 0.01
    assert conversion(lambda group: estimate("turn_return", group)) > 0.25


# --- siblings that are too old: here those of more than one turn ---------------------------------


def is_old(trajectory):
    return len(trajectory.turns) > 1


def withheld(group):
    """Too old ones are compared with, and not trained."""
    marked = (each.withhold("stale") if is_old(each) else each for each in group.trajectories)
    return estimate("rloo", replace(group, trajectories=tuple(marked)))


def dropped(group):
    """Too old ones are not even compared with."""
    fresh = tuple(each for each in group.trajectories if not is_old(each))
    rows = iter(estimate("rloo", replace(group, trajectories=fresh)))
    return [[0.0] * len(each.turns) if is_old(each) else next(rows) for each in group.trajectories]


@pytest.mark.parametrize("size", [2, 3])
def test_withheld_siblings_leave_the_others_the_credit_of_the_whole_policy(market, size):
    logits = a_policy(2)
    fresh = np.array([len(session.steps) == 1 for session in market.sessions])
    chances = market.probabilities(logits) * fresh
    # The fresh sessions' part of the true gradient: of what they earn above the value of the policy.
    wanted = (chances * (market.total - market.value(logits))) @ market.scores(logits).sum(axis=1)

    assert Expectation(market, size, withheld).gradient(logits) == pytest.approx(wanted, abs=1e-12)
    assert Expectation(market, size, dropped).gradient(logits) != pytest.approx(wanted, abs=1e-3)


def test_ratios_of_turns_keep_what_withholding_loses_and_halve_the_bias_of_turns_of_one_token():
    _, found = stale_turns.measured(3, 2, away=1.0)
    (as_they_are, noisy), (withheld, few) = found["as they are"], found["withheld"]
    ratio, snr = found["ratio, turns of 1 token"]
    assert withheld == pytest.approx(1.0, abs=1e-9)
    assert 1 - ratio < 0.6 * (1 - as_they_are)
    assert few < 0.8 * snr < 0.85 * noisy
