"""Columns say what the rows say, and no more."""

from dataclasses import replace

import orjson
import pytest

from environments.wire.columns import PER_ROW, columns_of, list_scores, rows_of
from environments.wire.views import VIEWS, token_advantages
from tests.environments.wire.golden_groups import CASES
from tests.tables import cases


@cases("case", CASES)
@cases("view", VIEWS)
def test_rows_come_back_from_the_json_of_their_columns(case, view):
    for group in VIEWS[view](CASES[case]):
        columns = columns_of(group)
        read = rows_of(orjson.loads(orjson.dumps(columns)))
        assert read == group
        assert columns_of(read) == columns


@pytest.mark.parametrize("case", CASES)
def test_a_column_has_one_entry_per_row_or_is_left_out(case):
    group = token_advantages(CASES[case])
    columns = columns_of(group)
    assert {len(columns[name]) for name in PER_ROW if name in columns} == {len(group.rows)}


def test_a_column_that_one_row_lacks_is_left_out():
    group = token_advantages(CASES["turn_rewards"])
    rows = (replace(group.rows[0], logprobs=None), *group.rows[1:])
    assert "inference_logprobs" not in columns_of(replace(group, rows=rows))


@cases("view", VIEWS)
@cases("case", CASES)
def test_no_column_is_none(case, view):
    assert None not in [column for group in VIEWS[view](CASES[case]) for column in columns_of(group).values()]


@pytest.mark.parametrize("case", CASES)
def test_the_columns_for_people_are_all_there(case):
    others = {"ref_logprobs", "generation_params", "group_overrides", "images"}
    assert set(list_scores(CASES[case])) == {*PER_ROW, *others}
