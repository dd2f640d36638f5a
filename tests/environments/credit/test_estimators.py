"""The shipped estimators where golden vectors do not look: what is missing, refused, unscored or alone."""

import dataclasses

import pytest

from environments.credit import (
    gigpo,
    grpo,
    mt_grpo,
    process_supervision,
    rloo,
    turn_gae,
    turn_return,
)
from environments.testing import group_of
from tools.errors import CreditError


def test_a_turn_nobody_else_reached_has_no_baseline_of_its_own():
    assert turn_return(group_of([[1.0], [1.0, 5.0]]))[1][1] == 5.0


def test_an_unscored_turn_gets_the_credit_of_what_follows():
    assert turn_return(group_of([[None, 2.0], [None, 0.0]])) == [[2.0, 2.0], [-2.0, -2.0]]


def test_a_scale_does_not_blow_up_where_only_turns_differ():
    group = group_of([[1.0, 0.0], [0.0, 1.0]])

    (_, first), (_, second) = turn_return(group, scale="group_std")

    assert (first, second) == pytest.approx((-(2**0.5), 2**0.5))


GROUP = group_of([[1.0], [0.0, 2.0]])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([[0.0]], "values for 1 trajectories; the group has 2"),
        ([[0.0], [0.0]], "1 values of trajectory 1 for its 2 turns"),
        ([[0.0], [0.0, float("nan")]], "value of trajectory 1, turn 2 is nan"),
    ],
)
def test_values_that_do_not_match_are_refused(values, message):
    with pytest.raises(CreditError, match=message):
        turn_gae(GROUP, values=values)


ALONE, TIED = group_of([[1.0, 2.0]]), group_of([[1.0], [1.0]])


def test_a_score_that_was_aggregated_otherwise_is_used_as_it_is():
    group = group_of([[4.0], [0.0]])
    rewards = dataclasses.replace(group.trajectories[0].rewards, score=1.0)
    rescored = dataclasses.replace(
        group,
        trajectories=(dataclasses.replace(group.trajectories[0], rewards=rewards), group.trajectories[1]),
    )

    assert rloo(rescored) == [[1.0], [-1.0]]


@pytest.mark.parametrize("estimator", [grpo, rloo])
def test_a_group_of_one_can_be_refused(estimator):
    with pytest.raises(CreditError, match="the group has one trajectory"):
        estimator(ALONE, singleton="error")


def test_a_group_that_does_not_vary_can_be_refused():
    with pytest.raises(CreditError, match="every score of the group is 1"):
        grpo(TIED, zero_variance="error")


def test_states_on_some_turns_only_are_refused_by_trajectory_and_turn():
    group = group_of([[1.0], [0.0, 0.0]], anchors=[["a"], ["a", None]])

    with pytest.raises(CreditError, match="trajectory 1, turn 2 has no anchor state"):
        gigpo(group)


EXACT = {"eps": 0.0, "ddof": 0}


def failing_first_tool(group):
    first = group.trajectories[0]
    refused = tuple(dataclasses.replace(r, error="tool_error") for r in first.turns[0].tool_results)
    turns = (dataclasses.replace(first.turns[0], tool_results=refused), *first.turns[1:])
    return dataclasses.replace(
        group, trajectories=(dataclasses.replace(first, turns=turns), *group.trajectories[1:])
    )


def test_the_first_segment_ends_with_the_first_tool_that_answered():
    group = group_of([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])

    assert mt_grpo(group, **EXACT)[0] == [1.0, 0.0, 0.0]
    assert mt_grpo(failing_first_tool(group), **EXACT)[0] == [1.0, 1.0, 0.0]


def test_an_unscored_turn_stays_out_of_the_statistics():
    assert process_supervision(group_of([[2.0, None], [0.0]])) == [[1.0, 0.0], [-1.0]]


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_an_offset_of_all_step_rewards_costs_no_digits(gamma):
    rewards = [[0.25, 0.5, 0.75], [1.0, 0.125], [0.0, 0.5, 0.625]]
    raised = [[1e9 + reward for reward in row] for row in rewards]

    rows = zip(
        process_supervision(group_of(raised), gamma=gamma),
        process_supervision(group_of(rewards), gamma=gamma),
        strict=True,
    )
    assert all(high == pytest.approx(low, rel=1e-12) for high, low in rows)
