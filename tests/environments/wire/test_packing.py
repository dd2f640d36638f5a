"""Posts of exactly the registered rows: few, and right for what the trainer makes of their scores."""

import math
import random
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import product

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.testing import group_of
from environments.trajectory import IGNORED, CreditedGroup
from environments.wire.padding import fill_posts, pack_rows, padding_scores
from environments.wire.payloads import Shape, pack, post_text
from environments.wire.views import token_advantages
from tests.benchmarks.bench_packing import random_group
from tests.environments.wire.forked_groups import forked_group, with_credit

SCORES = st.lists(st.integers(-20, 20).map(lambda number: number / 4), min_size=1, max_size=9)


def group_with(scores, owners=None, *, plain=True):
    """The rows of a group; `owners` names the trajectory of each, where some have several."""
    rewards = [[score] for score in scores]
    credited = CreditedGroup(
        group=group_of(rewards), advantages=tuple(map(tuple, rewards)), policy="p", estimator="turn_return"
    )
    made = token_advantages(credited)
    chosen = range(len(scores)) if owners is None else owners
    rows = [made.rows[owner] for owner in chosen]
    if plain:
        rows = [replace(row, advantages=None, override=None) for row in rows]
    return replace(made, plain=plain, rows=tuple(rows))


def posts_of(scores, size, owners=None, *, plain=True):
    owners = list(range(len(scores)) if owners is None else owners)
    return list(fill_posts(group_with(scores, owners, plain=plain), owners, scores, size))


def normalised(scores):
    """As Atropos' example trainer does it; `None` where all scores are equal."""
    mean = math.fsum(scores) / len(scores)
    deviation = math.sqrt(math.fsum((score - mean) ** 2 for score in scores) / len(scores))
    return [(score - mean) / deviation if deviation > 1e-9 else 0.0 for score in scores]


def real_rows(post):
    return [index for index, row in enumerate(post.rows) if "padding" not in (row.override or {})]


def credit_of_real_rows(made):
    """The score of each real row, and what becomes of it when its post is normalised."""
    found = []
    for post in made:
        scores = [row.score for row in post.rows]
        values = normalised(scores)
        found += [(scores[index], values[index]) for index in real_rows(post)]
    return found


@given(SCORES, st.integers(0, 8))
def test_a_plain_row_is_normalised_as_among_the_siblings_that_are_left(scores, missing):
    got = credit_of_real_rows(posts_of(scores, len(scores) + missing))
    assert [score for score, _ in got] == scores
    assert [value for _, value in got] == pytest.approx(normalised(scores), abs=1e-6)


@given(SCORES, st.integers(0, 3), st.data())
def test_the_plain_rows_of_a_rewritten_history_are_normalised_as_their_trajectory(scores, missing, data):
    owners = [owner for owner in range(len(scores)) for _ in range(data.draw(st.integers(0, 5)))]
    expected = dict(zip(scores, normalised(scores), strict=True))
    made = posts_of(scores, len(scores) + missing, owners)
    got = credit_of_real_rows(made)
    assert Counter(score for score, _ in got) == Counter(scores[owner] for owner in owners)
    assert [value for _, value in got] == pytest.approx([expected[score] for score, _ in got], abs=1e-6)
    assert {len(post.rows) for post in made} <= {len(scores) + missing}


@given(SCORES, st.integers(0, 3), st.data())
def test_rows_that_carry_their_own_credit_take_as_few_posts_as_can_be(scores, missing, data):
    owners = [owner for owner in range(len(scores)) for _ in range(data.draw(st.integers(0, 5)))]
    size = len(scores) + missing
    assert len(pack_rows(owners, scores, size, keep_scores=False)) == math.ceil(len(owners) / size)


def fits(taken, scores, size):
    """Whether padding can give a post with these scores the mean and deviation of all."""
    return len(taken) <= size and padding_scores(taken, scores, size - len(taken)) is not None


def in_order(owners, scores, size):
    """Posts of as many of the next rows as fit."""
    packed, start = [], 0
    while start < len(owners):
        ends = range(min(start + size, len(owners)), start, -1)
        fitting = (end for end in ends if fits([scores[owner] for owner in owners[start:end]], scores, size))
        end = next(fitting, start + 1)
        packed.append(list(range(start, end)))
        start = end
    return packed


def fewest_posts(owners, scores, size):
    """The fewest posts in which every score keeps its place, by trying all of them."""
    numbers = [list(owners).count(owner) for owner in range(len(scores))]
    posts = [
        rows
        for rows in product(*(range(min(number, size) + 1) for number in numbers))
        if any(rows)
        and fits(
            [score for score, number in zip(scores, rows, strict=True) for _ in range(number)], scores, size
        )
    ]

    @cache
    def fewest(left):
        if not any(left):
            return 0
        after = {tuple(max(0, a - b) for a, b in zip(left, rows, strict=True)) for rows in posts}
        return 1 + min(map(fewest, after - {left}))

    return fewest(tuple(numbers))


@given(SCORES, st.integers(0, 3))
def test_whole_trajectories_keep_their_order(scores, missing):
    """What leaves of a group that never forked is what always left of it."""
    size, owners = len(scores) + missing, range(len(scores))
    packed = pack_rows(owners, scores, size, keep_scores=True)
    assert [row for post in packed for row in post] == list(owners)
    assert packed == in_order(owners, scores, size)


@pytest.mark.parametrize("missing", [0, 1])
def test_scores_are_kept_in_as_few_posts_as_an_exact_search_finds(missing):
    rng = random.Random(missing)
    for number in range(60):
        owners, scores = random_group(rng, 4 - missing, most_rows=5, binary=number % 2 == 1)
        made = pack_rows(owners, scores, 4, keep_scores=True)
        assert len(made) == fewest_posts(owners, scores, 4)


def sent(rows, size=4, **rewards):
    """Posts of a group whose trajectories have so many rows."""
    lengths = [[[3]] * each for each in rows]
    return [
        orjson.loads(post_text(part.body))
        for part in pack(with_credit(forked_group(lengths, **rewards)), Shape(group_size=size)).parts
    ]


SEVEN = [7, 7, 7, 7]


def test_a_plain_forked_group_has_a_row_of_every_sibling_in_each_post():
    made = sent(SEVEN, outcomes=[0.0, 1.0, 0.25, 0.5])
    assert [post["scores"] for post in made] == [[0.0, 1.0, 0.25, 0.5]] * 7
    assert not any("overrides" in post for post in made)


def test_rows_that_teach_nothing_take_no_room_among_those_that_carry_their_own_credit():
    lengths = [[[9]] * 4 + [[2]], [[2]]]
    group = with_credit(forked_group(lengths, [[1.0, 0.0, 2.0, 0.5, 0.25], [0.0]]))
    package = pack(group, Shape(group_size=2, max_row_tokens=6))
    (post,) = [orjson.loads(post_text(part.body)) for part in package.parts]
    assert package.too_long == 4
    assert [override["row"] for override in post["overrides"]] == [4, 5]


def test_one_missing_sibling_takes_a_second_post_of_plain_scores_alone():
    plain, carrying = (posts_of([0.0, 1.0, 5.0], 4, plain=plain) for plain in (True, False))
    assert [len(real_rows(post)) for post in plain] == [2, 1]
    assert [[row.score for row in post.rows] for post in carrying] == [[0.0, 1.0, 5.0, 2.0]]


def test_padding_teaches_nothing():
    (post,) = posts_of([1.0, 3.0], 4, plain=False)
    padding = post.rows[3]
    assert set(padding.mask) == {IGNORED}
    assert set(padding.advantages) == {0.0}
    assert padding.override == {"group_id": "group", "set_advantage_to_zero": True, "padding": True}


@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e-100, 1e100])
def test_one_row_of_padding_cannot_restore_both_mean_and_deviation_at_any_scale(scale):
    scores = [0.0, scale, 5 * scale]
    assert padding_scores(scores, scores, 1) is None
