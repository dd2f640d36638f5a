"""When a difference between two policies is more than noise."""

from turnwise.lab.learning.rollout_numbers import PART, SCORE, changes, risen_items


def change(before, after, name=SCORE):
    """[seed][item] numbers on each side."""
    sides = [
        [{str(item): [{name: value}] for item, value in enumerate(seed)} for seed in side]
        for side in (before, after)
    ]
    return changes(*sides)[name]


DIRECTIONS = {
    "up on every item and seed": ([[0, 1], [0, 1]], [[1, 2], [1, 2]], "up"),
    "down on every item and seed": ([[1, 2], [1, 2]], [[0, 1], [0, 1]], "down"),
    "items that differ, each compared with itself": ([[0, 100], [0, 100]], [[1, 101], [1, 101]], "up"),
    "a seed that says otherwise": ([[0] * 9, [0] * 9], [[5] * 9, [-0.1] * 9], "unclear"),
    "within two standard errors": ([[0, 0, 0, 0]], [[1, -1, 1, 0]], "unclear"),
    "one item with one seed": ([[0]], [[1]], "unclear"),
}


def test_a_change_is_clear_where_it_is_larger_than_its_noise_on_every_seed():
    found = {name: change(before, after).direction for name, (before, after, _) in DIRECTIONS.items()}
    assert found == {name: expected for name, (_, _, expected) in DIRECTIONS.items()}


def test_what_stays_is_no_better_and_what_leans_upwards_beyond_its_noise_is():
    assert change([[1, 1]], [[1, 1]]).is_no_better
    assert not change([[0, 0, 0]], [[1, 1, 0.9]]).is_no_better


def test_an_item_lost_on_one_side_is_left_out_and_a_part_that_was_not_earned_was_zero():
    before, after = [{"a": [{SCORE: 0.0}], "b": [{SCORE: 9.0}]}], [{"a": [{SCORE: 1.0}]}]
    assert changes(before, after)[SCORE].before == 0.0
    assert changes([{"a": [{}]}], [{"a": [{PART + "calls": 1.0}]}])[PART + "calls"].before == 0.0
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
