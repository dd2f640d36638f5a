"""What holds for any group: order, telescoping, constants, size, shape, and the scalar path."""

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.credit import ESTIMATORS, estimate
from environments.testing import group_of

BUILT_IN = (
    *("gigpo", "grpo", "mt_grpo", "opo", "passk", "process_supervision", "rloo", "turn_gae"),
    *("turn_return", "rllm_per_step", "igpo", "hgpo", "gagpo", "rtmc", "salt", "tree_grpo"),
)
VARIANTS = [
    *((name, {}) for name in BUILT_IN),
    *(("turn_return", {"baseline": baseline}) for baseline in ("loo_total", "group_mean", "none")),
    ("turn_return", {"scale": "group_std", "gamma": 0.5}),
    ("grpo", {"norm_by_std": False}),
    ("grpo", {"preset": "verl"}),
    ("gigpo", {"mode": "mean_std_norm"}),
    ("gigpo", {"preset": "verl"}),
    ("igpo", {"streams": "separate"}),
    ("turn_gae", {"gamma": 0.9, "lam": 0.5}),
]
BASELINED = [
    ("turn_return", {"baseline": "loo_total"}),
    ("turn_return", {"baseline": "group_mean"}),
    ("rloo", {}),
    ("grpo", {"norm_by_std": False}),
    ("grpo", {}),
    ("mt_grpo", {}),
    ("gigpo", {"gamma": 1.0}),
]

quick = settings(max_examples=40, deadline=None)
sizes = st.floats(min_value=-1e12, max_value=1e12, allow_nan=False)
small = st.integers(min_value=-64, max_value=64).map(lambda eighths: eighths / 8)
"""Numbers whose sums floats hold exactly."""


@st.composite
def groups(draw, values=sizes, min_size=0, min_turns=0, outcome=True, unscored=True):
    """Rewards, outcomes and states of a ragged group."""
    reward = st.none() | values if unscored else values
    turns = st.lists(reward, min_size=min_turns, max_size=5)
    rewards = draw(st.lists(turns, min_size=min_size, max_size=5))
    outcomes = [draw(st.none() | values) if outcome else None for _ in rewards]
    states = [[draw(st.sampled_from("abc")) for _ in row] for row in rewards]
    return rewards, outcomes, states


def build(rewards, outcomes, states):
    return group_of(rewards, outcomes=outcomes, anchors=states)


def close(got, wanted):
    return all(
        one == pytest.approx(other, rel=1e-9, abs=1e-9)
        for row, other_row in zip(got, wanted, strict=True)
        for one, other in zip(row, other_row, strict=True)
    )


def test_the_variants_name_every_built_in_estimator():
    assert {name for name, _ in VARIANTS} == set(BUILT_IN) <= set(ESTIMATORS)


@pytest.mark.parametrize(("name", "params"), VARIANTS)
@quick
@given(numbers=groups())
def test_any_finite_group_gets_one_finite_advantage_per_turn(name, params, numbers):
    advantages = estimate(name, build(*numbers), **params)

    assert [len(row) for row in advantages] == [len(row) for row in numbers[0]]
    assert all(type(value) is float and math.isfinite(value) for row in advantages for value in row)


@pytest.mark.parametrize(("name", "params"), VARIANTS)
@quick
@given(numbers=groups(min_size=1), order=st.randoms(use_true_random=False))
def test_permuting_siblings_permutes_their_advantages_bit_for_bit(name, params, numbers, order):
    places = list(range(len(numbers[0])))
    order.shuffle(places)
    shuffled = [[column[place] for place in places] for column in numbers]

    advantages = estimate(name, build(*numbers), **params)

    assert estimate(name, build(*shuffled), **params) == [advantages[place] for place in places]


@pytest.mark.parametrize(("name", "params"), BASELINED)
@quick
@given(numbers=groups(small, min_size=2, min_turns=1), constant=small)
def test_a_constant_on_every_outcome_changes_nothing(name, params, numbers, constant):
    rewards, outcomes, states = numbers
    raised = [(outcome or 0.0) + constant for outcome in outcomes]

    assert close(
        estimate(name, build(rewards, raised, states), **params),
        estimate(name, build(rewards, outcomes, states), **params),
    )


@quick
@given(
    numbers=st.integers(min_value=1, max_value=5).flatmap(
        lambda turns: st.lists(st.lists(small, min_size=turns, max_size=turns), min_size=2, max_size=5)
    ),
    constant=small,
)
def test_a_constant_on_every_outcome_changes_no_turn_that_a_sibling_reached(numbers, constant):
    raised = group_of(numbers, outcomes=[constant] * len(numbers))

    assert close(estimate("turn_return", raised), estimate("turn_return", group_of(numbers)))


@quick
@given(scores=st.lists(sizes, min_size=1, max_size=6), turns=st.integers(min_value=1, max_value=4))
def test_turns_without_rewards_get_the_scalar_path_bit_for_bit(scores, turns):
    """A session whose only reward is its outcome is credited like a scalar environment."""
    counts = [1 + (turns + place) % 4 for place in range(len(scores))]
    scalar = group_of(None, outcomes=scores, lengths=[[1] * count for count in counts])
    unscored = group_of([[None] * count for count in counts], outcomes=scores)

    for name, params in VARIANTS:
        assert estimate(name, scalar, **params) == estimate(name, unscored, **params)


@pytest.mark.parametrize(("name", "params"), BASELINED)
@quick
@given(value=sizes, count=st.integers(min_value=2, max_value=6), turns=st.integers(min_value=1, max_value=4))
def test_a_group_that_does_not_vary_gets_exactly_nothing(name, params, value, count, turns):
    group = group_of([[value] * turns] * count, outcomes=[value] * count, anchors=[["a"] * turns] * count)
    if name == "gigpo" and turns > 1:
        return  # returns differ along a trajectory that stays in one state

    advantages = estimate(name, group, **params)

    flat = advantages if name in ("grpo", "rloo", "mt_grpo", "gigpo") else [row[:1] for row in advantages]
    assert all(value == 0.0 for row in flat for value in row)


@quick
@given(values=st.lists(sizes, min_size=2, max_size=6))
def test_leave_one_out_is_exact_to_the_last_bit_but_two(values):
    group = group_of(None, outcomes=values, lengths=[[1] for _ in values])
    total = sum(map(Fraction, values))

    for value, (got,) in zip(values, estimate("rloo", group), strict=True):
        exact = float(Fraction(value) - (total - Fraction(value)) / (len(values) - 1))
        size = max(abs(value), abs(float(total - Fraction(value))))
        assert abs(got - exact) <= 3 * math.ulp(size)


@pytest.mark.parametrize("name", ["turn_return", "rloo", "grpo"])
@pytest.mark.parametrize("params", [{}, {"scale": "group_std"}])
def test_a_difference_of_rounding_is_no_credit(name, params):
    if params and name != "turn_return":
        return
    assert estimate(name, group_of([[0.1 + 0.2], [0.3]]), **params) == [[0.0], [0.0]]
