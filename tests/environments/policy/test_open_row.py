import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.policy.open_row import OpenRow

IDS = st.lists(st.integers(0, 300_000), max_size=5)


def row_of(*ids):
    row = OpenRow()
    row.extend(ids, (), messages=1)
    return row


@given(st.lists(st.tuples(IDS, IDS)))
def test_its_json_is_that_of_its_ids_however_it_grew(turns):
    row, ids = OpenRow(), []
    for unsampled, sampled in turns:
        row.extend(unsampled, sampled, messages=1)
        ids += unsampled + sampled
        assert orjson.loads(b"[%b]" % row.json()) == ids == list(row.token_ids)


@given(IDS, IDS)
def test_the_rest_of_a_prompt_that_goes_on_is_what_follows(held, new):
    assert row_of(*held).rest_of((*held, *new)) == tuple(new)


@pytest.mark.parametrize("prompt", [(1, 2), (1, 9, 3), (9, 2, 3, 4), (1, 2, 9), ()], ids=str)
def test_a_prompt_that_begins_otherwise_has_no_rest(prompt):
    assert row_of(1, 2, 3).rest_of(prompt) is None


def test_what_a_policy_builds_of_the_ids_does_not_change_the_row():
    row = row_of(1, 2)
    ids = row.token_ids
    ids = [*ids[:1], 7]
    assert (list(row.token_ids), ids) == ([1, 2], [1, 7])
    assert not hasattr(row.token_ids, "append")
