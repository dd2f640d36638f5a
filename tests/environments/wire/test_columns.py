"""Columns say what the rows say, and no more."""

from dataclasses import replace

import orjson

from environments.wire.training_rows import columns_of, rows_of
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


def test_a_column_that_one_row_lacks_is_left_out():
    group = token_advantages(CASES["turn_rewards"])
    rows = (replace(group.rows[0], logprobs=None), *group.rows[1:])
    assert "inference_logprobs" not in columns_of(replace(group, rows=rows))
