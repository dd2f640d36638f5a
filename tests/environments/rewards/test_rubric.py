"""Weights that make one reward of several numbers."""

import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.rewards.rubric import novelty_rewards, pairwise_rewards, rank_rewards
from tests.tables import cases
from tools.errors import ConfigError, RewardError
from turnwise.rewards import Rubric


def test_parts_are_weighted_and_kept_as_they_were():
    reward = Rubric(answer=1.0, format=0.2)(answer=True, format=0.5)
    assert (reward, reward.raw) == ({"answer": 1.0, "format": 0.1}, {"answer": 1.0, "format": 0.5})


def test_a_part_that_is_not_scored_is_not_zero():
    reward = Rubric(answer=1.0, format=0.2)(answer=None, format=1)
    assert (reward, reward.raw) == ({"format": 0.2}, {"format": 1.0})


def test_without_a_scored_part_there_is_no_reward():
    assert Rubric(answer=1.0)(answer=None) is None


@cases(
    ("weights", "message"),
    [
        ({}, "a Rubric without parts scores nothing"),
        ({"a": math.nan}, "weight of 'a' is nan"),
        ({"a": math.inf}, "weight of 'a' is inf"),
        ({"a": True}, "weight of 'a' is True"),
        ({"a": "1"}, "weight of 'a' is '1'"),
        ({"a": (1, 2)}, r"weight of 'a' is \(1, 2\)"),
        ({"an answer": 1, "An  answer": 2}, "parts 'an answer' and 'An  answer'"),
        ({"group": 1}, "'group'; that name is taken by score_group"),
        ({"group.rank": 1}, "'group.rank'; that name is taken by score_group"),
        ({" ": 1}, "' '; that name is no name"),
    ],
)
def test_weights_that_make_no_rubric_are_refused(weights, message):
    with pytest.raises(ConfigError, match=message):
        Rubric(**weights)


@cases(
    ("raw", "message"),
    [
        ({"a": 1}, "Rubric of a, b was given a;"),
        ({"a": 1, "b": 1, "c": 1}, "was given a, b, c;"),
        ({}, "was given nothing"),
        ({"a": 1, "b": math.nan}, "part 'b' is nan"),
        ({"a": 1, "b": "1"}, "part 'b' is '1'"),
        ({"a": 1, "b": 10**400}, "part 'b' is 1000"),
    ],
)
def test_numbers_that_a_rubric_cannot_weigh_are_an_error(raw, message):
    with pytest.raises(RewardError, match=message):
        Rubric(a=1, b=2)(**raw)


NUMBERS = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8)


def test_a_rank_is_the_share_of_the_others_that_are_smaller():
    assert rank_rewards([3.0, 1.0, 2.0]) == [1.0, 0.0, 0.5]


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


@cases("given", [2.0, -0.1, math.nan])
async def test_what_is_no_comparison_is_refused(given):
    async def first_wins(i, j):
        return given

    with pytest.raises(RewardError, match="a comparison is a number from 0 to 1"):
        await pairwise_rewards(2, first_wins)
