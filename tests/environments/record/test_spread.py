"""Spreads: what numbers come to that are not kept."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.record.spread import Spread


def spread(*values):
    made = Spread()
    for value in values:
        made.add(value)
    return made


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=50))
def test_the_deviation_is_that_of_a_sample(values):
    assert spread(*values).sd == pytest.approx(statistics.stdev(values), rel=1e-6, abs=1e-6)


def test_a_small_deviation_of_large_numbers_is_not_lost():
    assert spread(1e9 + 1, 1e9 + 2, 1e9 + 3).sd == pytest.approx(1.0)


def test_one_number_says_nothing_of_a_deviation():
    assert spread(2.0).values() == {"count": 1, "mean": 2.0, "sd": None, "min": 2.0, "max": 2.0}


def test_nothing_is_not_zero():
    assert spread().values() == {"count": 0, "mean": None, "sd": None, "min": None, "max": None}


def test_what_is_beyond_the_range_of_numbers_is_unknown():
    values = spread(*[1e308] * 3, -1e308).values()
    assert (values["sd"], values["max"]) == (None, 1e308)
