"""What a few seeds say of estimators."""

import pytest

from environments.lab.learning.arm_comparison import comparison

OF = "mean score"


@pytest.mark.parametrize(
    ("arms", "begins"),
    [
        (
            {"a": [0.9, 0.8, 0.7], "b": [0.1, 0.2, 0.3]},
            "a is ahead of b (with 3 seeds, luck alone does that once in 20)",
        ),
        ({"a": [0.9, 0.8, 0.2], "b": [0.1, 0.2, 0.3]}, "not separable with 3 seeds"),
        (
            {"a": [0.9, 0.8], "b": [0.85, 0.7], "c": [0.1, 0.2]},
            "a is ahead of c, and not separable from b (with 2 seeds",
        ),
        ({"a": [0.5, 0.5], "b": [0.5, 0.5]}, "all estimators gave the same mean score on every seed"),
        ({"a": [0.9], "b": [0.1]}, "one seed separates nothing"),
        ({"a": [0.9, 0.8]}, "only one estimator was tried"),
    ],
    ids=["ahead", "overlap", "two-level", "same", "one-seed", "one-arm"],
)
def test_an_estimator_is_ahead_where_its_worst_seed_beats_the_best_of_the_others(arms, begins):
    assert comparison(arms, OF).startswith(begins)


def test_the_numbers_stand_beside_the_words():
    assert "b 0.200 (0.100 to 0.300)" in comparison({"a": [0.9, 0.8, 0.7], "b": [0.1, 0.2, 0.3]}, OF)
