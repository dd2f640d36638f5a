"""What items are called, and that two never share a name."""

import pytest

from environments.rollout.items.item_json import item_id, item_ids
from tools.errors import DatasetError


@pytest.mark.parametrize(
    ("item", "identity"),
    [
        ({"item_id": "i", "task_id": "t", "id": 3}, "i"),
        ({"task_id": "t", "id": 3}, "t"),
        ({"task_id": None, "id": 0}, "0"),
    ],
)
def test_an_item_is_named_by_its_first_id_field(item, identity):
    assert item_id(item) == identity


def test_an_item_without_an_id_field_is_named_by_its_content():
    assert item_id({"a": 1, "b": [2]}) == item_id({"b": [2], "a": 1}) != item_id({"a": 1, "b": [3]})


def test_an_item_may_be_plain_text():
    assert item_id("one") != item_id("two")


def test_two_items_with_one_id_are_refused():
    with pytest.raises(DatasetError, match="items 1 and 3 have the same id 'x'"):
        item_ids([{"id": "x"}, {"id": "y"}, {"id": "x"}])


def test_ids_keep_the_order_of_the_items():
    assert item_ids([{"id": "b"}, {"id": 1}, {"id": "a"}]) == ["b", "1", "a"]
