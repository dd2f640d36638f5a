"""Weights that make one reward of several numbers."""

import math

import pytest

from tests.tables import cases
from tools.errors import ConfigError, RewardError
from turnwise import Rubric


def test_parts_are_weighted_and_kept_as_they_were():
    reward = Rubric(answer=1.0, format=0.2)(answer=True, format=0.5)
    assert (reward, reward.raw) == ({"answer": 1.0, "format": 0.1}, {"answer": 1.0, "format": 0.5})


def test_a_part_that_is_not_scored_is_not_zero():
    reward = Rubric(answer=1.0, format=0.2)(answer=None, format=1)
    assert (reward, reward.raw) == ({"format": 0.2}, {"format": 1.0})


def test_without_a_scored_part_there_is_no_reward():
    assert Rubric(answer=1.0)(answer=None) is None


def test_a_part_may_have_any_name_and_no_weight():
    assert Rubric(**{"too long": -1, "self": 0})(**{"too long": 0.5, "self": 3}) == {
        "too long": -0.5,
        "self": 0,
    }


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
    ids=["empty", "nan", "inf", "bool", "text", "tuple", "alike", "reserved", "reserved_part", "blank"],
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
    ids=["missing", "unknown", "nothing", "nan", "text", "too_large"],
)
def test_numbers_that_a_rubric_cannot_weigh_are_an_error(raw, message):
    with pytest.raises(RewardError, match=message):
        Rubric(a=1, b=2)(**raw)
