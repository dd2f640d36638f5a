"""The groups of a run: which item, and how often it was there before."""

from itertools import islice

import pytest

from environments.rollout.items.tasks import plan, plan_for_ever

ITEMS, IDS = ["a", "b", "c"], ["1", "2", "3"]


def names(tasks):
    return [(task.item, task.item_id, task.epoch) for task in tasks]


def test_without_a_total_every_item_is_planned_once():
    assert names(plan(ITEMS, IDS, -1)) == [("a", "1", 0), ("b", "2", 0), ("c", "3", 0)]


def test_a_larger_total_goes_round_the_items():
    assert names(plan(ITEMS, IDS, 4))[2:] == [("c", "3", 0), ("a", "1", 1)]


@pytest.mark.parametrize("first", [0, 1, 3, 7])
def test_a_plan_without_an_end_goes_on_where_the_groups_before_it_stopped(first):
    assert list(islice(plan_for_ever(ITEMS, IDS, first), 5)) == plan(ITEMS, IDS, first + 5)[first:]
