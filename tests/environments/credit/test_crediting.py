"""A credited group says with what it was computed, and whether there is anything to learn."""

from environments.credit import credited
from environments.testing import group_of


def test_every_parameter_is_recorded_with_the_value_that_was_used():
    group = credited(group_of([[1.0], [0.0]]), "grpo", policy="p", preset="trl", params={"ddof": 0})

    assert group.estimator_params == {
        "norm_by_std": True,
        "ddof": 0,
        "eps": 1e-4,
        "singleton": "zero",
        "zero_variance": "zero",
    }


def test_a_critic_s_values_are_not_a_recorded_parameter():
    group = credited(group_of([[1.0], [0.0]]), "turn_gae", policy="p", params={"values": [[0.5], [0.0]]})

    assert group.advantages == ((0.5,), (0.0,))
    assert set(group.estimator_params) == {"gamma", "lam"}


def test_a_group_whose_scores_tie_but_whose_turns_differ_has_credit():
    tied = group_of([[1.0, 0.0], [0.0, 1.0]])

    assert credited(tied, "turn_return", policy="p").status == "ok"
    assert credited(tied, "grpo", policy="p").status == "no_credit"


def test_a_group_without_credit_says_why():
    assert credited(group_of([[1.0], [1.0]]), "rloo", policy="p").reason == "every advantage is zero"
