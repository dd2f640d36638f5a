"""turn_return where golden vectors do not look: baselines that are missing, unscored turns, scale."""

import pytest

from environments.credit import turn_return
from environments.testing import group_of


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
