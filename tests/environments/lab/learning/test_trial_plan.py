"""How much is tried within the seconds that there are."""

import pytest

from environments.lab.learning.trial_plan import Asked, TrialPlan, plan_within
from tools.errors import ConfigError


def test_a_fast_environment_gets_the_largest_plan():
    assert plan_within(Asked(seconds=60), group_s=0.01, arms=3, items=100) == TrialPlan(
        seeds=3, steps=25, items=8
    )


def test_a_slow_one_gets_fewer_steps_then_fewer_seeds():
    plans = [
        plan_within(Asked(seconds=60), group_s=seconds, arms=2, items=100) for seconds in (0.2, 0.45, 1.0)
    ]
    assert [(plan.seeds, plan.steps) for plan in plans] == [(3, 25), (2, 15), (2, 6)]


def test_what_is_asked_for_stays_and_few_items_are_all_played():
    plan = plan_within(Asked(seconds=60, seeds=5, steps=7), group_s=0.01, arms=2, items=2)
    assert (plan.seeds, plan.steps, plan.items) == (5, 7, 2)


def test_no_steps_are_few_enough_to_be_asked_for():
    assert plan_within(Asked(seconds=60, steps=0), group_s=0.01, arms=2, items=9).steps == 0


def test_an_environment_that_is_too_slow_is_told_how_long_it_takes():
    with pytest.raises(ConfigError, match=r"a group takes about 20 s here.* give --seconds 1830"):
        plan_within(Asked(seconds=60), group_s=20.0, arms=2, items=100)


def test_the_groups_of_a_plan_are_those_of_reference_starts_steps_and_ends():
    assert TrialPlan(seeds=3, steps=10, items=4).groups(arms=2) == 4 + 3 * 4 + 2 * 3 * (4 + 2 * 10)
