"""Means and deviations that are exact where nothing varies and finite wherever floats are."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.credit.terms import Pool, deviation, mean, means_of_others, minus_mean, vary


def centred(values):
    return [*minus_mean("value", Pool.of_trajectories(values)).differences()]


def z_scores(values, *, ddof):
    return [*minus_mean("value", Pool.of_trajectories(values), ddof=ddof, eps=0.0).differences()]


numbers = st.lists(st.floats(min_value=-1e12, max_value=1e12), min_size=2, max_size=20)


@pytest.mark.parametrize("value", [0.1, 0.3, 0.7, 1e100, -1e-300])
@pytest.mark.parametrize("count", [2, 3, 7, 16])
def test_the_mean_of_equal_values_is_that_value(value, count):
    assert mean([value] * count) == value
    assert means_of_others([value] * count) == [value] * count


def test_a_mean_does_not_depend_on_the_order():
    assert mean([1e12, 0.1, -1e12, 0.2]) == mean([0.2, -1e12, 0.1, 1e12]) == pytest.approx(0.075)


def test_others_keep_their_small_numbers_beside_a_large_one():
    assert means_of_others([1e12, 0.1, 0.3])[0] == 0.2


@given(numbers)
def test_the_deviation_is_that_of_the_standard_library(values):
    assert deviation(values, 1) == pytest.approx(statistics.stdev(values), rel=1e-9)
    assert deviation(values, 0) == pytest.approx(statistics.pstdev(values), rel=1e-9)


@pytest.mark.parametrize("scale", [5e-324, 1e-308, 1e100])
def test_a_deviation_survives_squares_that_floats_cannot_hold(scale):
    assert z_scores([0.0, scale], ddof=0)[1] > 0
    assert all(map(math.isfinite, z_scores([0.0, scale], ddof=0)))


def test_values_that_differ_by_rounding_do_not_vary():
    assert not vary([0.1 + 0.2, 0.3])
    assert z_scores([0.1 + 0.2, 0.3], ddof=0) == [0.0, 0.0]
    assert centred([0.1 + 0.2, 0.3]) == [0.0, 0.0]


def test_small_differences_that_are_more_than_rounding_vary():
    assert vary([1.0, 1.0 + 1e-9])


def test_too_few_values_for_a_deviation_score_nothing():
    assert z_scores([3.0], ddof=1) == [0.0]
