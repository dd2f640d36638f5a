"""Padding teaches nothing, and a trainer that normalises scores sees each row as among all its siblings."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.testing import group_of
from environments.trajectory import IGNORED, CreditedGroup
from environments.wire.columns import columns_of
from environments.wire.padding import padding_scores, posts
from environments.wire.views import token_advantages

SCORES = st.lists(st.integers(-20, 20).map(lambda number: number / 4), min_size=1, max_size=9)


def group_with(scores, rows=None):
    """The rows of a group; `rows` names the trajectory of each, where some have several."""
    rewards = [[score] for score in scores]
    credited = CreditedGroup(
        group=group_of(rewards), advantages=tuple(map(tuple, rewards)), policy="p", estimator="turn_return"
    )
    made = token_advantages(credited)
    chosen = range(len(scores)) if rows is None else rows
    return replace(made, rows=tuple(made.rows[row] for row in chosen))


def scores_of(post):
    return [row.score for row in post.rows]


def normalised(scores):
    """As Atropos' example trainer does it; `None` where all scores are equal."""
    mean = math.fsum(scores) / len(scores)
    deviation = math.sqrt(math.fsum((score - mean) ** 2 for score in scores) / len(scores))
    return [(score - mean) / deviation if deviation > 1e-9 else 0.0 for score in scores]


def real_rows(post):
    return [index for index, row in enumerate(post.rows) if "padding" not in (row.override or {})]


@given(SCORES, st.integers(0, 8))
def test_a_row_is_normalised_as_among_the_siblings_that_are_left(scores, missing):
    expected = normalised(scores)
    got = []
    for post in posts(group_with(scores), scores, len(scores) + missing):
        values = normalised(scores_of(post))
        got += [values[index] for index in real_rows(post)]
    assert got == pytest.approx(expected, abs=1e-6)


@given(SCORES, st.data())
def test_the_rows_of_a_rewritten_history_are_normalised_as_their_trajectory(scores, data):
    owners = [owner for owner in range(len(scores)) for _ in range(data.draw(st.integers(1, 3)))]
    expected = [normalised(scores)[owner] for owner in owners]
    got = []
    for post in posts(group_with(scores, owners), scores, len(scores)):
        assert len(post.rows) == len(scores)
        values = normalised(scores_of(post))
        got += [values[index] for index in real_rows(post)]
    assert got == pytest.approx(expected, abs=1e-6)


def test_two_of_eight_siblings_are_credited_as_a_pair():
    (post,) = posts(group_with([0.0, 1.0]), [0.0, 1.0], 8)
    assert normalised(scores_of(post))[:2] == pytest.approx([-1.0, 1.0])


def test_one_missing_sibling_takes_a_second_post():
    made = list(posts(group_with([0.0, 1.0, 5.0]), [0.0, 1.0, 5.0], 4))
    assert [len(real_rows(post)) for post in made] == [2, 1]


def test_a_whole_group_is_left_as_it_is():
    group = group_with([0.0, 1.0])
    assert list(posts(group, [0.0, 1.0], 2)) == [group]


def test_padding_teaches_nothing():
    (post,) = posts(group_with([1.0, 3.0]), [1.0, 3.0], 4)
    padding = post.rows[3]
    assert set(padding.mask) == {IGNORED}
    assert set(padding.advantages) == {0.0}
    assert padding.override == {"group_id": "group", "set_advantage_to_zero": True, "padding": True}


def test_padding_has_what_the_rows_have():
    group = group_with([1.0, 3.0])
    bare = replace(
        group, rows=tuple(replace(row, logprobs=None, messages=None, advantages=None) for row in group.rows)
    )
    (post,) = posts(bare, [1.0, 3.0], 4)
    assert (post.rows[3].logprobs, post.rows[3].messages, post.rows[3].advantages) == (None, None, None)


def test_scalar_data_that_is_padded_says_so():
    group = group_with([1.0, 3.0])
    scalar = replace(
        group, plain=True, rows=tuple(replace(row, advantages=None, override=None) for row in group.rows)
    )
    (post,) = posts(scalar, [1.0, 3.0], 4)
    columns = columns_of(post)
    assert [override.get("padding") for override in columns["overrides"]] == [None, None, True, True]
    assert ("advantages" in columns, columns["group_overrides"]) == (False, {})


@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e-100, 1e100])
def test_one_row_of_padding_cannot_restore_both_mean_and_deviation_at_any_scale(scale):
    scores = [0.0, scale, 5 * scale]
    assert padding_scores(scores, scores, 1) is None


def test_equal_scores_are_padded_with_their_value():
    assert padding_scores([2.0, 2.0, 2.0], [2.0, 2.0, 2.0], 1) == [2.0]
