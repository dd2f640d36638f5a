"""grpo and rloo where golden vectors do not look: groups that are refused, and where a score comes from."""

import dataclasses

import pytest

from environments.credit import grpo, rloo
from environments.testing import group_of
from tools.errors import CreditError

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
