"""Unbiasedness as a fact: expected gradients over every possible group, against the true gradient."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.credit import estimate
from environments.testing import group_of
from tests.benchmarks.credit_bias import (
    Expectation,
    Market,
    a_policy,
    cosine,
    separate_streams,
    totals_without_peer,
)

REWARD = st.floats(-10, 10)
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


def test_the_true_gradient_is_the_slope_of_the_value(market):
    logits, step = a_policy(1), 1e-6
    slopes = [
        (market.value(logits + step * axis) - market.value(logits - step * axis)) / (2 * step)
        for axis in np.eye(len(logits))
    ]

    assert market.gradient(logits) == pytest.approx(slopes, abs=1e-8)


def test_the_policy_decides_when_to_stop(market):
    assert len({len(session.steps) for session in market.sessions}) == len(market.sessions[-1].steps)
    assert market.probabilities(a_policy(1)).sum() == pytest.approx(1.0)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("case", UNBIASED)
def test_the_expected_gradient_points_along_the_true_one(market, case, seed, size):
    name, params, _ = UNBIASED[case]
    logits = a_policy(seed)

    gradient = expected_gradient(market, size, logits, name, params)

    assert cosine(gradient, market.gradient(logits)) > 1 - 1e-9


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("case", UNBIASED)
def test_the_expected_gradient_has_the_length_that_the_bias_note_says(market, case, size):
    name, params, scale = UNBIASED[case]
    logits, shrunk = a_policy(), (size - 1) / size
    true = market.gradient(logits)

    gradient = expected_gradient(market, size, logits, name, params)

    assert gradient == pytest.approx((shrunk if scale is None else scale) * true, abs=1e-12)


@pytest.mark.parametrize("size", [2, 3])
def test_the_totals_of_others_are_an_unbiased_baseline_of_a_turn_without_a_peer(market, size):
    logits = a_policy()

    gradient = Expectation(market, size, totals_without_peer).gradient(logits)

    assert gradient == pytest.approx(market.gradient(logits), abs=1e-12)


@pytest.mark.parametrize("size", [2, 3])
def test_and_a_noisier_one_than_none(market, size):
    raw = Expectation(market, size, lambda group: estimate("turn_return", group))
    totals = Expectation(market, size, totals_without_peer)

    assert 1.0 < totals.noise(a_policy()) / raw.noise(a_policy()) < 1.1


@given(
    others=st.lists(st.lists(REWARD, min_size=1, max_size=3), min_size=1, max_size=3),
    own=st.lists(REWARD, min_size=5, max_size=5),
    later=st.lists(REWARD, min_size=2, max_size=2),
)
def test_what_a_turn_without_a_peer_moves_does_not_move_that_baseline(others, own, later):
    def baseline(rewards):
        return sum(rewards[3:]) - totals_without_peer(group_of([rewards, *others]))[0][3]

    assert baseline(own) == pytest.approx(baseline([*own[:3], *later]))


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("grpo", {}),
        ("gigpo", {"gamma": 1.0, "mode": "mean_std_norm"}),
        ("mt_grpo", {}),
        ("mt_grpo", {"segments": "per_turn"}),
        ("process_supervision", {}),
        ("progress", {}),
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
    marked = (each.withheld("stale") if is_old(each) else each for each in group.trajectories)
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


def test_what_only_old_sessions_decide_is_not_learned(market):
    """The bias of withholding by age: later turns are those of long sessions."""
    gradient = Expectation(market, 2, withheld).gradient(a_policy(2))
    warm = gradient.reshape(3, 3)[1]
    assert not warm.any()
    assert market.gradient(a_policy(2)).reshape(3, 3)[1].any()
