"""Outcomes that are missing beside others are refused, dropped or stated: they are never 0 by silence."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.credit import GroupRules, credited, missing_outcome_of
from environments.testing import group_of
from environments.time_profile import TimeProfile
from environments.trajectory import Failure
from tools.errors import ConfigError

MIXED = group_of([[0.5], [0.25], [0.0], [1.0]], outcomes=[1.0, None, 0.0, None])
SILENT = group_of([[1.0, 0.0], [None], [0.0]])


def credit(group, missing_outcome="refuse", estimator="turn_return", **rules):
    return credited(group, estimator, policy="p", rules=GroupRules(missing_outcome=missing_outcome, **rules))


@pytest.mark.parametrize("estimator", ["turn_return", "grpo", "rloo", "mt_grpo", "turn_gae", "progress"])
def test_by_default_the_group_fails_and_the_reason_names_the_siblings(estimator):
    refused = credit(MIXED, estimator=estimator)
    assert (refused.status, refused.advantages) == ("failed", ((0.0,),) * 4)
    assert refused.reason == (
        "no outcome beside siblings with one: siblings 1, 3; missing_outcome says what is to count, "
        "drop or a number"
    )
    assert refused.group == MIXED


def test_a_sibling_that_is_dropped_is_a_failure_and_the_others_are_compared_without_it():
    dropped = credit(MIXED, "drop")
    assert [(each.sibling, each.error_class) for each in dropped.group.failures] == [
        (1, "RewardError"), (3, "RewardError")
    ]  # fmt: skip
    left = tuple(MIXED.trajectories[index] for index in (0, 2))
    assert dropped.group.trajectories == left
    assert dropped.advantages == credit(replace(MIXED, trajectories=left)).advantages


def test_the_time_of_a_sibling_that_is_dropped_is_kept():
    profile = TimeProfile(wall_s=2.0, calls={})
    timed = tuple(replace(each, profile=profile) for each in MIXED.trajectories)

    dropped = credit(replace(MIXED, trajectories=timed), "drop").group

    assert [each.profile for each in dropped.failures] == [profile, profile]


def test_failures_stay_ordered_by_sibling():
    before = tuple(
        Failure(sibling=sibling, stop_reason=None, error="E", traceback="", turns=0) for sibling in (0, 2)
    )
    dropped = credit(replace(MIXED, trajectories=MIXED.trajectories[1::2], failures=before), "drop")
    assert [each.sibling for each in dropped.group.failures] == [0, 2]
    group = replace(MIXED, trajectories=MIXED.trajectories[:2], failures=before[1:])
    assert [each.sibling for each in credit(group, "drop").group.failures] == [1, 2]


def test_too_few_that_are_left_after_a_drop_fail():
    assert credit(MIXED, "drop", min_trajectories=3).reason == (
        "2 of 4 rollouts survived, at least 3 are needed"
    )


def test_a_stated_number_is_credited_and_recorded_as_the_outcome_and_named_as_stated():
    stated = credit(MIXED, -0.5)
    whole = credit(group_of([[0.5], [0.25], [0.0], [1.0]], outcomes=[1.0, -0.5, 0.0, -0.5]))
    assert (stated.status, stated.advantages) == ("ok", whole.advantages)
    rewards = [each.rewards for each in stated.group.trajectories]
    assert [each.outcome for each in rewards] == [1.0, -0.5, 0.0, -0.5]
    assert [each.score for each in rewards] == [1.5, -0.25, 0.0, 0.5]
    assert [dict(each.outcome_components) for each in rewards] == [{}, {"missing_outcome": -0.5}] * 2


def test_a_trajectory_of_which_nothing_was_scored_is_missing_beside_others():
    assert credit(SILENT).reason.startswith("nothing scored beside siblings with rewards: siblings 1; ")
    assert [each.sibling for each in credit(SILENT, "drop").group.trajectories] == [0, 2]
    assert credit(SILENT, 0.0).advantages == credit(group_of([[1.0, 0.0], [0.0], [0.0]])).advantages


def test_a_single_unscored_turn_is_not_missing():
    assert credit(group_of([[1.0, None], [None, 0.0]])).status == "ok"


@pytest.mark.parametrize("missing_outcome", ["refuse", "drop", 1.0])
@pytest.mark.parametrize("group", [group_of([[None], [None]]), group_of([[0.5], [1.0]])])
def test_where_all_lack_it_nothing_is_missing(group, missing_outcome):
    assert credit(group, missing_outcome).group == group


def test_a_group_of_which_nothing_was_scored_says_so():
    nothing = credit(group_of([[None], [None, None]]))
    assert (nothing.status, nothing.reason) == ("no_credit", "nothing was scored")


@given(
    rewards=st.lists(st.lists(st.none() | st.floats(-9, 9), min_size=1, max_size=3), min_size=1, max_size=5),
    data=st.data(),
    missing=st.sampled_from(["refuse", "drop", 0.0, 2.5]),
)
def test_no_number_is_credited_that_nobody_gave(rewards, data, missing):
    outcomes = [data.draw(st.none() | st.floats(-9, 9)) for _ in rewards]
    done = credit(group_of(rewards, outcomes=outcomes), missing)
    rewards_left = [each.rewards for each in done.group.trajectories]
    given = [each.outcome for each in rewards_left if not each.outcome_components]
    if done.status == "ok":
        assert None not in given or set(given) == {None}
        assert None not in [each.score for each in rewards_left]
    assert credit(done.group, missing).group == done.group
    siblings = [each.sibling for each in (*done.group.trajectories, *done.group.failures)]
    assert sorted(siblings) == list(range(len(rewards)))


@pytest.mark.parametrize(("value", "number"), [("0.5", 0.5), (0, 0.0), ("drop", "drop")])
def test_a_setting_may_be_a_number_as_text(value, number):
    assert missing_outcome_of(value, "--env.missing_outcome") == number


@pytest.mark.parametrize(
    "value", ["zero", "", math.nan, "inf", True, None, [], 1e101, 10**400], ids=lambda value: f"{value!r:.9}"
)
def test_what_is_no_rule_is_refused_with_what_is_possible(value):
    with pytest.raises(ConfigError, match="choose refuse, drop or a finite number"):
        missing_outcome_of(value, "--env.missing_outcome")
