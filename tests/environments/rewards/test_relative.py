"""Rewards that compare siblings: by rank, and pair by pair."""

import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.rewards.rubric import novelty_rewards, pairwise_rewards, rank_rewards
from tools.errors import RewardError

NUMBERS = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8)


def test_a_rank_is_the_share_of_the_others_that_are_smaller():
    assert rank_rewards([3.0, 1.0, 2.0]) == [1.0, 0.0, 0.5]


def test_equal_ones_share_their_ranks():
    assert rank_rewards([1.0, 1.0, 0.0]) == [0.75, 0.75, 0.0]


@given(NUMBERS)
def test_ranks_are_a_half_on_average_whatever_is_ranked(values):
    assert math.fsum(rank_rewards(values)) == pytest.approx(len(values) / 2)


def test_what_nobody_else_gave_is_new():
    assert novelty_rewards([[1], [1], [2], None]) == [2 / 3, 2 / 3, 1.0, 1.0]
    assert novelty_rewards(["alone"]) == [0.5]


@given(NUMBERS)
def test_comparing_pairs_by_their_numbers_is_ranking_them(values):
    async def first_wins(i, j):
        return (values[i] > values[j]) + 0.5 * (values[i] == values[j])

    assert asyncio.run(pairwise_rewards(len(values), first_wins)) == pytest.approx(rank_rewards(values))


async def test_a_judge_that_prefers_the_first_place_prefers_nobody():
    async def first_wins(i, j):
        return 1.0

    assert await pairwise_rewards(4, first_wins) == [0.5] * 4


async def test_comparisons_go_on_side_by_side_within_their_bound():
    running, most = 0, 0

    async def first_wins(i, j):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return 0.5

    await pairwise_rewards(4, first_wins, at_once=3)
    assert most == 3


@pytest.mark.parametrize("given", [2.0, -0.1, math.nan])
async def test_what_is_no_comparison_is_refused(given):
    async def first_wins(i, j):
        return given

    with pytest.raises(RewardError, match="a comparison is a number from 0 to 1"):
        await pairwise_rewards(2, first_wins)


def test_what_cannot_be_ranked_is_refused():
    with pytest.raises(RewardError, match="finite numbers"):
        rank_rewards([1.0, math.nan])


async def test_no_comparison_at_once_is_refused_and_not_waited_for():
    async def first_wins(i, j):
        return 1.0

    with pytest.raises(RewardError, match="at_once is 0; give 1 or more"):
        await pairwise_rewards(2, first_wins, at_once=0)
