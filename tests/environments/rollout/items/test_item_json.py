"""What a record keeps of an item, what it is compared by, and what it is called."""

import datetime
import math
from dataclasses import dataclass

import numpy as np
import pytest
from pydantic import BaseModel

from environments.rollout.items.item_json import item_for_record, item_hash, item_id, item_ids, json_text
from environments.rollout.items.tasks import GroupTask
from tests.tables import cases
from tools.errors import DatasetError


@dataclass(frozen=True)
class Task:
    name: str
    sizes: tuple[int, ...] = (1, 2)


class Model(BaseModel):
    name: str = "a"


@cases(
    ("item", "kept"),
    [
        ({"a": (1, 2.5, None)}, {"a": [1, 2.5, None]}),
        (Task("x"), {"name": "x", "sizes": [1, 2]}),
        (Model(), {"name": "a"}),
        ({"day": datetime.date(2026, 1, 2)}, {"day": "2026-01-02"}),
        ({"of": {"b", "a"}}, {"of": ["a", "b"]}),
        (np.array([1, 2]), [1, 2]),
    ],
)
def test_an_item_is_kept_as_json_values(item, kept):
    assert item_for_record(item) == kept


@cases("item", [math.nan, 2**70, "\ud800", {"f": print}, {"id": "a", "object": object()}])
def test_an_item_that_would_not_come_back_equal_is_not_kept_but_compared(item):
    assert item_for_record(item) is None
    assert item_hash(item) == item_hash(item) != item_hash({"id": "b"})


@cases("item", [object(), {"a": [object()]}, {"a": {object(): 1}}, [print], {"a": math}])
def test_an_item_without_a_name_that_json_cannot_write_is_refused_by_its_number(item):
    with pytest.raises(DatasetError, match=r"^item 2 holds an object of type \w+.*JSON has no form for"):
        item_ids(["fine", item])


def test_an_item_that_holds_itself_is_refused():
    item = []
    item.append(item)
    with pytest.raises(DatasetError, match="item 1 holds itself"):
        item_ids([item])


@pytest.mark.parametrize("field", ["item_id", "task_id", "id"])
def test_an_id_that_is_no_text_to_a_record_is_refused_by_its_number(field):
    with pytest.raises(DatasetError, match=r"item 2 has the id .* not UTF-8 text"):
        item_ids([{field: "a"}, {field: "half \ud83d"}])
    with pytest.raises(DatasetError, match=f"item 1 has an object of type object as its {field}"):
        item_ids([{field: object()}])
    with pytest.raises(DatasetError, match=f"item 1 has an object of type dict as its {field}"):
        item_ids([{field: {"a": 1}}])


@pytest.mark.parametrize("identity", ["\ud83d", 5, None])
def test_a_task_of_ones_own_has_an_id_that_a_record_can_hold(identity):
    with pytest.raises(DatasetError, match="a GroupTask has the id"):
        GroupTask(item={}, item_id=identity)


def test_text_is_the_same_whatever_the_order_of_a_set_or_a_mapping():
    assert json_text({"b": {"y", "x"}, "a": 1}) == json_text({"a": 1, "b": {"x", "y"}})


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
    assert item_id("one") != item_id("two")


def test_ids_keep_the_order_of_the_items_and_no_two_are_alike():
    assert item_ids([{"id": "b"}, {"id": 1}, {"id": "a"}]) == ["b", "1", "a"]
    with pytest.raises(DatasetError, match="items 1 and 3 have the same id 'x'"):
        item_ids([{"id": "x"}, {"id": "y"}, {"id": "x"}])
