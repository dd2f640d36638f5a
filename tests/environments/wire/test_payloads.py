"""What leaves: only rows that a trainer reads right, in groups that the API can batch."""

import gzip
import math
from dataclasses import replace

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.testing import group_of
from environments.trajectory import IGNORED, CreditedGroup
from environments.wire.padding import is_longer_than
from environments.wire.payloads import Shape, compress, pack, part_without, post_body, post_text
from environments.wire.training_rows import check_rows, columns_of, rows_of
from environments.wire.views import token_advantages
from tools.errors import WireError


def credited(group, advantages):
    return CreditedGroup(
        group=group, advantages=tuple(map(tuple, advantages)), policy="p", estimator="turn_return"
    )


TWO = credited(group_of([[1.0, 2.0], [0.5]]), [[0.5, -0.5], [1.0]])
COLUMNS = columns_of(token_advantages(TWO))


def sent(group, **shape):
    package = pack(group, Shape(**({"group_size": 2} | shape)))
    return [orjson.loads(post_text(part.body)) for part in package.parts], package.too_long


@given(
    st.lists(st.lists(st.floats(-2, 2), min_size=1, max_size=3), min_size=1, max_size=7), st.integers(0, 5)
)
def test_every_post_has_exactly_the_registered_rows_and_no_row_is_lost(rewards, missing):
    size = len(rewards) + missing
    posts, _ = sent(credited(group_of(rewards), rewards), group_size=size)
    assert {len(post["tokens"]) for post in posts} == {size}
    rows = [override["row"] for post in posts for override in post["overrides"] if "row" in override]
    assert rows == list(range(len(rewards)))
    for post in posts:
        check_rows(rows_of(post))


def test_a_row_that_is_too_long_becomes_padding_with_its_score_and_its_siblings_leave():
    long = credited(group_of([[1.0], [2.0]], lengths=[[9], [2]]), [[0.5], [-0.5]])
    posts, too_long = sent(long, max_row_tokens=9)
    assert too_long == 1
    assert [override.get("row") for override in posts[0]["overrides"]] == [0, 1]
    assert (posts[0]["scores"], posts[0]["masks"][0]) == ([1.0, 2.0], [IGNORED] * 2)


def test_a_row_of_exactly_the_trainers_limit_leaves_whole():
    exact = credited(group_of([[1.0], [2.0]], lengths=[[9], [2]]), [[0.5], [-0.5]])
    posts, too_long = sent(exact, max_row_tokens=10)
    assert (too_long, [len(tokens) for tokens in posts[0]["tokens"]]) == (0, [10, 3])
    part = pack(exact, Shape(group_size=2)).parts[0]
    assert part_without(part, is_longer_than(10)) == (part, 0)


def test_a_part_is_shortened_for_a_trainer_that_takes_less():
    long = credited(group_of([[1.0], [2.0]], lengths=[[9], [2]]), [[0.5], [-0.5]])
    part = pack(long, Shape(group_size=2)).parts[0]
    assert part.longest_row == 10
    shorter, left_out = part_without(part, is_longer_than(9))
    assert (shorter, left_out) == (pack(long, Shape(group_size=2, max_row_tokens=9)).parts[0], 1)
    assert part_without(part, is_longer_than(2)) == (None, 2)


def test_a_value_that_json_does_not_know_is_named():
    with pytest.raises(WireError, match="a row is not JSON"):
        compress(COLUMNS | {"messages": [[object()]] * 2})


def test_scores_too_large_to_normalise_are_refused():
    huge = credited(group_of([[1e308], [1e308], [-1e308]]), [[0.5], [0.5], [-1.0]])
    with pytest.raises(WireError, match="too large"):
        pack(huge, Shape(group_size=4))


def test_nothing_leaves_when_every_row_is_too_long():
    assert sent(TWO, max_row_tokens=1) == ([], 2)


def test_the_body_is_the_json_with_the_environments_id_in_front():
    part = compress(COLUMNS)
    assert orjson.loads(gzip.decompress(post_body(part, 7))) == {"env_id": 7, **COLUMNS}


def test_a_group_with_an_infinite_advantage_never_leaves():
    with pytest.raises(WireError, match="finite"):
        pack(replace(TWO, advantages=((math.inf, 0.0), (0.0,))), Shape(group_size=2))
