"""Padding teaches nothing, and a trainer that normalises scores sees each row as among all its siblings."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.testing import group_of
from environments.trajectory import IGNORED, CreditedGroup
from environments.wire.padding import padding_scores, posts
from environments.wire.views import token_advantages

SCORES = st.lists(st.integers(-20, 20).map(lambda number: number / 4), min_size=1, max_size=9)


def columns_of(scores, rows=None):
    """The rows of a group; `rows` names the trajectory of each, where some have several."""
    rewards = [[score] for score in scores]
    credited = CreditedGroup(
        group=group_of(rewards), advantages=tuple(map(tuple, rewards)), policy="p", estimator="turn_return"
    )
    made = token_advantages(credited)
    chosen = range(len(scores)) if rows is None else rows
    return {
        name: [column[row] for row in chosen] if isinstance(column, list) else column
        for name, column in made.items()
    }


def normalised(scores):
    """As Atropos' example trainer does it; `None` where all scores are equal."""
    mean = math.fsum(scores) / len(scores)
    deviation = math.sqrt(math.fsum((score - mean) ** 2 for score in scores) / len(scores))
    return [(score - mean) / deviation if deviation > 1e-9 else 0.0 for score in scores]


def real_rows(post):
    return [place for place, override in enumerate(post["overrides"]) if "padding" not in override]


@given(SCORES, st.integers(0, 8))
def test_a_row_is_normalised_as_among_the_siblings_that_are_left(scores, missing):
    expected = normalised(scores)
    got = []
    for post in posts(columns_of(scores), scores, len(scores) + missing):
        values = normalised(post["scores"])
        got += [values[place] for place in real_rows(post)]
    assert got == pytest.approx(expected, abs=1e-6)


@given(SCORES, st.data())
def test_the_rows_of_a_rewritten_history_are_normalised_as_their_trajectory(scores, data):
    owners = [owner for owner in range(len(scores)) for _ in range(data.draw(st.integers(1, 3)))]
    expected = [normalised(scores)[owner] for owner in owners]
    got = []
    for post in posts(columns_of(scores, owners), scores, len(scores)):
        assert len(post["tokens"]) == len(scores)
        values = normalised(post["scores"])
        got += [values[place] for place in real_rows(post)]
    assert got == pytest.approx(expected, abs=1e-6)


def test_two_of_eight_siblings_are_credited_as_a_pair():
    (post,) = posts(columns_of([0.0, 1.0]), [0.0, 1.0], 8)
    assert normalised(post["scores"])[:2] == pytest.approx([-1.0, 1.0])


def test_one_missing_sibling_takes_a_second_post():
    made = list(posts(columns_of([0.0, 1.0, 5.0]), [0.0, 1.0, 5.0], 4))
    assert [len(real_rows(post)) for post in made] == [2, 1]


def test_a_whole_group_is_left_as_it_is():
    columns = columns_of([0.0, 1.0])
    assert list(posts(columns, [0.0, 1.0], 2)) == [columns]


def test_padding_teaches_nothing():
    (post,) = posts(columns_of([1.0, 3.0]), [1.0, 3.0], 4)
    padding = {name: column[3] for name, column in post.items() if isinstance(column, list)}
    assert set(padding["masks"]) == {IGNORED}
    assert set(padding["advantages"]) == {0.0}
    assert padding["overrides"] == {"group_id": "group", "set_advantage_to_zero": True, "padding": True}
    assert post["group_overrides"] == {"group_size": 4}


def test_scalar_data_that_is_padded_says_so():
    scalar = columns_of([1.0, 3.0]) | {"overrides": None, "advantages": None, "group_overrides": {}}
    (post,) = posts(scalar, [1.0, 3.0], 4)
    assert [override.get("padding") for override in post["overrides"]] == [None, None, True, True]
    assert (post["advantages"], post["group_overrides"]) == (None, {})


def test_one_row_of_padding_cannot_restore_both_mean_and_deviation():
    assert padding_scores([0.0, 1.0, 5.0], [0.0, 1.0, 5.0], 1) is None


def test_equal_scores_are_padded_with_their_value():
    assert padding_scores([2.0, 2.0, 2.0], [2.0, 2.0, 2.0], 1) == [2.0]
