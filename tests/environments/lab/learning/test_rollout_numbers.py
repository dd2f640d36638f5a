"""When a difference between two policies is more than noise."""

import math

from environments.lab.learning.rollout_numbers import PART, SCORE, changes, risen_items


def change(before, after, name=SCORE):
    """[seed][item] numbers on each side."""
    sides = [
        [{str(item): [{name: value}] for item, value in enumerate(seed)} for seed in side]
        for side in (before, after)
    ]
    return changes(*sides)[name]


def test_a_difference_on_every_item_and_seed_is_clear():
    assert change([[0, 1], [0, 1]], [[1, 2], [1, 2]]).direction == "up"
    assert change([[1, 2], [1, 2]], [[0, 1], [0, 1]]).direction == "down"


def test_items_that_differ_are_no_noise_where_each_is_compared_with_itself():
    found = change([[0, 100], [0, 100]], [[1, 101], [1, 101]])
    assert found.error == 0
    assert found.direction == "up"


def test_one_seed_that_says_otherwise_makes_it_unclear():
    assert change([[0] * 9, [0] * 9], [[5] * 9, [-0.1] * 9]).direction == "unclear"


def test_a_difference_within_two_standard_errors_is_unclear():
    assert change([[0, 0, 0, 0]], [[1, -1, 1, 0]]).direction == "unclear"


def test_one_item_with_one_seed_says_nothing():
    found = change([[0]], [[1]])
    assert found.direction == "unclear"
    assert math.isinf(found.error)


def test_what_stays_is_no_better_and_what_leans_upwards_beyond_its_noise_is():
    assert change([[1, 1]], [[1, 1]]).is_no_better
    assert not change([[0, 0, 0]], [[1, 1, 0.9]]).is_no_better


def test_an_item_that_was_lost_on_one_side_is_left_out():
    before, after = [{"a": [{SCORE: 0.0}], "b": [{SCORE: 9.0}]}], [{"a": [{SCORE: 1.0}]}]
    assert changes(before, after)[SCORE].before == 0.0


def test_a_part_that_nobody_earned_at_the_start_was_zero_there():
    assert changes([{"a": [{}]}], [{"a": [{PART + "calls": 1.0}]}])[PART + "calls"].before == 0.0


def test_no_score_on_one_side_is_no_zero():
    assert SCORE not in changes([{"a": [{}]}], [{"a": [{SCORE: 1.0}]}])


def groups(*values):
    """One seed; of each item the scores of its rollouts."""
    return [{str(item): [{SCORE: each} for each in scores] for item, scores in enumerate(values)}]


def test_items_that_rose_are_those_with_each_rollout_above_all_before():
    before, after = (
        groups((0, 0, 0, 1), (0, 0, 0, 0), (0, 0, 0, 0)),
        groups((2, 2, 2, 2), (1, 1, 1, 1), (0, 2, 2, 2)),
    )
    assert risen_items(before, after, SCORE) == [{"0", "1"}]


def test_with_one_rollout_of_each_item_half_of_them_rise_by_luck():
    before, after = groups((0,), (0,), (1,)), groups((1,), (1,), (0,))
    assert risen_items(before, after, SCORE) == [set()]
