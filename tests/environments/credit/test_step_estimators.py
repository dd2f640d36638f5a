"""Estimators that compare all groups of a training step: which groups, and how far from the true gradient."""

from dataclasses import replace

import numpy as np
import pytest

from environments.credit import ESTIMATORS, credited, credited_batch, describe, estimate, register_estimator
from environments.testing import group_of
from environments.trajectory import Failure, TrajectoryGroup
from tests.benchmarks.credit_bias import Expectation, Market, a_policy, cosine
from tests.environments.credit.golden_cases import credit_step
from tools.errors import CreditError

OF_STEPS = sorted(name for name in ESTIMATORS if describe(name).over_step is not None)
SPLITS = (((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 3), (1, 2)))
"""Of four siblings, every step of two groups: all are equally likely."""


def rolled_out(*rewards):
    return [credited(group_of(each), "turn_return", policy="p") for each in rewards]


@pytest.mark.parametrize("name", OF_STEPS)
def test_one_group_alone_is_refused_by_name(name):
    group = group_of([[1.0], [0.0]])

    for compute in (lambda: estimate(name, group), lambda: credited(group, name, policy="p")):
        with pytest.raises(
            CreditError, match=rf"{name} compares all groups .*credited_batch\(groups, '{name}'"
        ):
            compute()


@pytest.mark.parametrize("name", ["reinforce_pp", "grpo_batch", "gpg"])
def test_what_another_group_earned_moves_credit(name):
    one, other = [[1.0], [0.0]], [[5.0], [0.0]]

    (near, _), (far, _) = (
        credited_batch(rolled_out(one, one), name),
        credited_batch(rolled_out(one, other), name),
    )

    assert (near.advantages != far.advantages) == (name != "gpg")
    assert credited_batch(rolled_out(one, [[0.0], [0.0]]), "gpg")[0].advantages == ((2.0,), (-2.0,))


def test_a_failed_group_is_compared_with_nothing():
    step = rolled_out([[1.0], [0.0]], [[0.0], [3.0]])
    refusal = Failure(sibling=2, stop_reason=None, error="no", traceback="", turns=0, refuses_group=True)
    failed = replace(step[0], group=replace(step[0].group, failures=(refusal,)))

    *good, last = credited_batch([*step, failed], "reinforce_pp")

    assert good == credited_batch(step, "reinforce_pp")
    assert (last.status, last.reason) == ("failed", "sibling 2: no")


@pytest.mark.parametrize("name", OF_STEPS)
def test_a_step_whose_scores_all_tie_teaches_nothing(name):
    step = rolled_out([[0.1], [0.1]], [[0.1], [0.1]])

    assert {each.status for each in credited_batch(step, name)} == {"no_credit"}


@pytest.mark.usefixtures("forgets_registrations")
def test_an_estimator_of_ones_own_may_compare_a_step():
    def largest_is_one(terms, groups, *, floor: float = 0.0):
        top = max(abs(value) for own in terms for term in own for value in term.differences())
        return [[replace(term, divisor=max(top, floor)) for term in own] for own in terms]

    @register_estimator("largest_is_one", over_step=largest_is_one)
    def centred(group):
        return describe("rloo").terms(group)

    step = rolled_out([[1.0], [0.0]], [[0.0], [4.0]])

    assert credited_batch(step, "largest_is_one")[0].advantages == ((0.25,), (-0.25,))
    assert credited_batch(step, "largest_is_one", params={"floor": 8.0})[1].advantages == ((-0.5,), (0.5,))


# --- bias ------------------------------------------------------------------------------------------------


def in_steps(name, splits, **params):
    """What siblings get, on average over the groups that a step can split them into."""

    def weigh(siblings):
        rows = [np.zeros(len(each.turns)) for each in siblings.trajectories]
        for split in splits:
            groups = [
                replace(siblings, trajectories=tuple(siblings.trajectories[index] for index in part))
                for part in split
            ]
            for part, advantages in zip(split, credit_step(groups, name, **params), strict=True):
                for index, row in zip(part, advantages, strict=True):
                    rows[index] += np.array(row) / len(splits)
        return rows

    return weigh


def bias(size, name, splits, seed=0, **params):
    market, logits = Market(2), a_policy(seed)
    gradient = Expectation(market, size, in_steps(name, splits, **params)).gradient(logits)
    return 1 - cosine(gradient, market.gradient(logits))


@pytest.mark.parametrize("weigh", ["tokens", "trajectories"])
def test_the_bias_of_whitening_shrinks_as_a_step_grows(weigh):
    of = [bias(n, "reinforce_pp", [[(each,) for each in range(n)]], weigh=weigh) for n in (2, 3, 4)]

    assert 0.12 > of[0] > of[1] > of[2] > 0.05


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("reinforce_pp_baseline", 0.05, 0.1),
        ("grpo_batch", 0.05, 0.12),
        ("gpg", 0.001, 0.01),
    ],
)
def test_a_step_of_two_groups_has_the_bias_that_the_note_says(name, least, most):
    assert least < bias(4, name, SPLITS) < most


@pytest.mark.parametrize("name", [name for name in OF_STEPS if name != "gdpo"])
def test_in_a_large_step_no_bias_is_left(name):
    market, logits, chance = Market(2), a_policy(), np.random.default_rng(0)
    values, scores = market.values(), market.scores(logits)
    total = np.zeros(len(logits))
    for _ in range(40):
        drawn = chance.choice(len(values), size=(128, 4), p=market.probabilities(logits))
        groups = [TrajectoryGroup(trajectories=tuple(values[each] for each in row)) for row in drawn]
        for row, advantages in zip(drawn, credit_step(groups, name), strict=True):
            for session, credit in zip(row, advantages, strict=True):
                total += np.array(credit) @ scores[session, : len(credit)]

    assert cosine(total, market.gradient(logits)) > 0.99


def test_gdpo_keeps_a_part_of_the_outcome_apart_from_turn_rewards_whatever_its_name():
    def step_of(name):
        group = group_of([[1.0], [0.0], [0.0]], outcomes=[0.0, 1.0, 3.0])
        named = [
            replace(
                each, rewards=replace(each.rewards, outcome_components={name: each.rewards.outcome or 0.0})
            )
            for each in group.trajectories
        ]
        return credit_step([replace(group, trajectories=tuple(named))], "gdpo")

    assert step_of("turn rewards") == step_of("sold")


# --- a critic's values -----------------------------------------------------------------------------------


def test_a_critics_values_that_turns_have_are_those_of_turn_gae():
    group = group_of([[1.0, 2.0], [0.5]])
    valued = replace(
        group,
        trajectories=tuple(
            replace(each, turns=tuple(replace(turn, value=0.5 + turn.index) for turn in each.turns))
            for each in group.trajectories
        ),
    )

    assert estimate("turn_gae", valued, lam=0.5) == estimate(
        "turn_gae", group, lam=0.5, values=[[0.5, 1.5], [0.5]]
    )
    assert estimate("turn_gae", valued, values=[[0.0, 0.0], [0.0]]) == estimate("turn_gae", group)


def test_values_of_some_turns_are_refused():
    (first, second) = group_of([[1.0], [0.5]]).trajectories
    valued = replace(first, turns=(replace(first.turns[0], value=0.5),))

    with pytest.raises(CreditError, match="trajectory 1, turn 1 has no value, and other turns have one"):
        estimate("turn_gae", TrajectoryGroup(trajectories=(valued, second)))


def test_a_critic_that_knows_the_policy_leaves_no_bias_and_less_noise():
    market, logits = Market(2), a_policy()
    policy = market.policy(logits)
    # What a seller of two turns can expect: one that is warmer can sell more.
    best = [[0.0] * 3, [0.0] * 3]
    for left in (1, 0):
        for state in (0, 1, 2):
            sold = policy[state, 1] * (0.1, 0.4, 0.8)[state]
            later = [best[1][state], best[1][min(state + 1, 2)]] if left == 0 else [0.0, 0.0]
            warms = (0.5, 0.5, 0.0)[state]
            best[left][state] = sold + policy[state, 0] * (0.1 + (1 - warms) * later[0] + warms * later[1])

    def with_critic(group):
        states = {"cold": 0, "warm": 1, "hot": 2}
        values = [[best[turn.index][states[turn.anchor]] for turn in t.turns] for t in group.trajectories]
        return estimate("turn_gae", group, values=values)

    critic = Expectation(market, 2, with_critic)
    raw = Expectation(market, 2, lambda group: estimate("turn_gae", group))
    assert critic.gradient(logits) == pytest.approx(market.gradient(logits), abs=1e-12)
    assert critic.noise(logits) < raw.noise(logits)
