"""The shipped estimators where golden vectors do not look: what is missing, refused, unscored or alone."""

import dataclasses

import pytest

from environments.credit import (
    gigpo,
    grpo,
    mt_grpo,
    process_supervision,
    progress,
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


def test_an_unscored_turn_counts_like_a_zero_in_the_return():
    assert turn_return(group_of([[None, 1.0], [2.0]])) == turn_return(group_of([[0.0, 1.0], [2.0]]))


def test_the_outcome_belongs_to_the_last_turn():
    group = group_of([[0.0, 0.0, 0.0]], outcomes=[8.0])

    assert turn_return(group, gamma=0.5, baseline="none") == [[2.0, 4.0, 8.0]]


def test_no_discount_at_all_leaves_each_turn_its_own_reward():
    assert turn_return(group_of([[3.0, 4.0]], outcomes=[1.0]), gamma=0.0, baseline="none") == [[3.0, 5.0]]


def test_the_outcome_weight_says_what_a_conversion_is_worth():
    group = group_of([[1.0], [0.0]], outcomes=[0.0, 1.0])

    assert turn_return(group, outcome_weight=3.0) == [[-2.0], [2.0]]


def test_a_scalar_environment_gets_its_score_on_every_turn():
    group = group_of(None, outcomes=[1.0, 0.0], lengths=[[1, 1], [1, 1]])

    assert turn_return(group) == [[1.0, 1.0], [-1.0, -1.0]]


def test_a_trajectory_that_ended_before_its_first_turn_still_counts_as_a_session():
    group = group_of([[], [1.0]], outcomes=[4.0, 1.0])

    assert turn_return(group, baseline="loo_total") == [[], [-2.0]]


def test_a_scale_does_not_blow_up_where_only_turns_differ():
    group = group_of([[1.0, 0.0], [0.0, 1.0]])

    (_, first), (_, second) = turn_return(group, scale="group_std")

    assert (first, second) == pytest.approx((-(2**0.5), 2**0.5))


def test_a_group_without_any_credit_has_nothing_to_scale():
    assert turn_return(group_of([[1.0], [1.0]]), scale="group_std") == [[0.0], [0.0]]


GROUP = group_of([[1.0], [0.0, 2.0]])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([[0.0]], "values for 1 trajectories; the group has 2"),
        ([[0.0], [0.0]], "1 values for the 2 turns of trajectory 1"),
        ([[0.0], [0.0, float("nan")]], "value of trajectory 1, turn 2 is nan"),
    ],
)
def test_values_that_do_not_match_are_refused(values, message):
    with pytest.raises(CreditError, match=message):
        turn_gae(GROUP, values=values)


def test_a_perfect_critic_leaves_no_advantage():
    assert turn_gae(GROUP, values=[[1.0], [2.0, 2.0]], lam=0.5) == [[0.0], [0.0, 0.0]]


def test_without_a_critic_it_is_the_return():
    assert turn_gae(GROUP) == [[1.0], [2.0, 2.0]]


ALONE, TIED = group_of([[1.0, 2.0]]), group_of([[1.0], [1.0]])


def test_a_score_is_outcome_and_turn_rewards():
    group = group_of([[0.5, None], [0.5]], outcomes=[1.0, 0.0])

    assert grpo(group, norm_by_std=False) == [[0.5, 0.5], [-0.5]]


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


def test_a_raw_score_is_divided_like_any_other():
    assert grpo(ALONE, singleton="raw", eps=0.5) == [[2.0, 2.0]]
    assert grpo(ALONE, singleton="raw", eps=0.5, norm_by_std=False) == [[3.0, 3.0]]


def test_a_large_reward_next_to_small_ones_does_not_swallow_them():
    assert rloo(group_of([[1e12], [0.25], [0.75]]))[0] == [1e12 - 0.5]


def test_states_on_some_turns_only_are_refused_by_trajectory_and_turn():
    group = group_of([[1.0], [0.0, 0.0]], anchors=[["a"], ["a", None]])

    with pytest.raises(CreditError, match="trajectory 1, turn 2 has no anchor state"):
        gigpo(group)


def test_without_any_state_the_episode_term_is_left():
    group = group_of([[1.0, 2.0], [0.0]])

    assert gigpo(group) == grpo(group, norm_by_std=False)


def test_equal_states_are_compared_across_time_and_siblings():
    group = group_of([[0.0, 4.0], [0.0, 0.0]], anchors=[["a", "b"], ["b", "c"]])

    step = [
        [whole - part for whole, part in zip(*rows, strict=True)]
        for rows in zip(gigpo(group, gamma=1.0), gigpo(group, gamma=1.0, step_weight=0.0), strict=True)
    ]

    assert step == [[0.0, 2.0], [-2.0, 0.0]]


def test_a_lone_row_stays_raw_only_under_the_reference_s_statistics():
    group = group_of([[3.0]], anchors=[["a"]])

    assert gigpo(group) == [[0.0]]
    assert gigpo(group, episode_stats="rows") == [[3.0]]


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


def test_a_scalar_environment_gets_grpo():
    group = group_of(None, outcomes=[1.0, 0.0, 0.0], lengths=[[1, 1], [1], [1, 1]])

    assert mt_grpo(group, eps=1e-6) == grpo(group)
    assert mt_grpo(group, segments="per_turn", eps=1e-6) == grpo(group)


def test_per_turn_a_session_that_earns_later_is_not_credited_earlier():
    group = group_of([[0.0, 5.0], [0.0, 0.0]])

    assert mt_grpo(group, segments="per_turn", **EXACT) == [[0.0, 1.0], [0.0, -1.0]]


def test_per_turn_an_unscored_turn_is_not_compared():
    group = group_of([[4.0], [None], [0.0]])

    assert mt_grpo(group, segments="per_turn", **EXACT) == [[1.0], [0.0], [-1.0]]


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


def test_a_further_turn_without_reward_costs_its_author_though_no_return_changes():
    short = process_supervision(group_of([[1.0], [0.0]]))
    longer = process_supervision(group_of([[1.0, 0.0], [0.0]]))

    assert longer[0][0] < short[0][0]


def test_progress_that_is_lost_again_is_debt():
    assert progress(group_of([[0.5, 0.2]]), gamma=0.0)[0][1] < 0


def test_what_an_unscored_turn_achieved_is_shared_out_from_the_next_scored_one():
    first, second = progress(group_of([[None, 3.0]]), gamma=0.5)[0]

    assert (first, second) == (1.0, 2.0)


def test_unscored_turns_at_the_end_earn_nothing():
    assert progress(group_of([[1.0, None]])) == [[1.0, 0.0]]


def test_a_scalar_environment_s_outcome_is_smeared_over_its_turns():
    group = group_of(None, outcomes=[3.0], lengths=[[1, 1]])

    assert progress(group, gamma=0.5) == [[1.0, 2.0]]
