"""In which order items come, and how often: seeded, and the same after a restart."""

from collections import Counter
from itertools import islice

import pytest

from environments.rollout.items.tasks import ItemOrder, item_weights, plan, plan_for_ever
from tests.tables import cases
from tools.errors import DatasetError

IDS = [f"i{n}" for n in range(20)]


def names(order, total, ids=IDS):
    return [(task.item_id, task.epoch) for task in plan(ids, ids, total, order)]


def test_groups_go_round_the_items():
    tasks = plan(["a", "b"], ["1", "2"], 3)
    assert [(task.item, task.item_id, task.epoch) for task in tasks] == [
        ("a", "1", 0),
        ("b", "2", 0),
        ("a", "1", 1),
    ]
    assert plan(["a", "b"], ["1", "2"], -1) == tasks[:2]


def test_a_shuffled_round_has_every_item_once():
    assert sorted(names(ItemOrder(shuffle=True), -1)) == sorted((each, 0) for each in IDS)


def test_each_round_is_shuffled_anew():
    order = names(ItemOrder(shuffle=True), 40)
    assert [each for each, _ in order[:20]] != [each for each, _ in order[20:]]


def test_another_seed_is_another_order():
    assert names(ItemOrder(shuffle=True, seed=1), -1) != names(ItemOrder(shuffle=True, seed=2), -1)


def test_an_item_that_is_added_leaves_the_order_of_the_others():
    more = names(ItemOrder(shuffle=True), -1, [*IDS, "new"])
    assert [each for each in more if each[0] != "new"] == names(ItemOrder(shuffle=True), -1)


ORDERS = [
    ItemOrder(),
    ItemOrder(shuffle=True, seed=3),
    ItemOrder(weights=[float(n) for n in range(20)], seed=3),
]


@cases("order", ORDERS, ids=["as given", "shuffled", "weighted"])
@cases("first", [0, 7, 20, 33])
def test_a_plan_that_is_taken_up_again_goes_on_where_it_was(order, first):
    again = [(task.item_id, task.epoch) for task in islice(plan_for_ever(IDS, IDS, first, order), 30)]
    assert again == names(order, first + 30)[first:]


def test_a_round_has_each_item_as_often_as_its_weight_says():
    drawn = Counter(each for each, _ in names(ItemOrder(weights=[3.0, 1.0, 0.0, 0.0]), -1, list("abcd")))
    assert drawn == {"a": 3, "b": 1}


def test_a_share_between_two_counts_is_met_on_average():
    drawn = Counter(each for each, _ in names(ItemOrder(weights=[2.0, 1.0, 1.0]), 3000, list("abc")))
    assert drawn["a"] == pytest.approx(1500, abs=20)


def test_no_group_comes_twice():
    drawn = names(ItemOrder(weights=[float(n % 5) for n in range(20)]), 500)
    assert len(set(drawn)) == 500


@cases(
    ("items", "reason"),
    [
        ([{"w": 1}, {}], "item 2 has no such field"),
        ([{"w": -1}], "item 1 has -1 there"),
        ([{"w": float("nan")}], "item 1 has nan there"),
        ([{"w": True}], "item 1 has True there"),
        ([{"w": "1"}], "item 1 has '1' there"),
        (["text"], "item 1 has no such field"),
        ([{"w": 0}, {"w": 0}], "weights sum to 0"),
    ],
    ids=["missing", "negative", "nan", "bool", "text", "no-mapping", "all-zero"],
)
def test_a_weight_that_is_none_is_refused_by_item(items, reason):
    with pytest.raises(DatasetError, match=reason):
        item_weights(items, "w")
