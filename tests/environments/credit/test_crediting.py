"""A credited group says with what it was computed, and whether there is anything to learn."""

import asyncio
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.credit import (
    ESTIMATORS,
    GroupRules,
    credited,
    credited_batch,
    describe,
    missing_outcome_of,
    register_estimator,
)
from environments.testing import group_of
from environments.trajectory import CreditedGroup, Failure
from tools.errors import ConfigError


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


def raising(error):
    def raise_it():
        raise error

    return raise_it


class Unprintable(Exception):
    def __str__(self):
        raise ValueError("no words")


class Odd(list):
    """A group's advantages by whose length nothing can be told."""

    def __len__(self):
        raise RecursionError


WRONG = {
    "raises": raising(ZeroDivisionError("by 0")),
    "exits": raising(SystemExit(0)),
    "cancels itself": raising(asyncio.CancelledError()),
    "ends a generator": raising(GeneratorExit()),
    "raises what cannot be printed": raising(Unprintable()),
    "raises a novel with half a surrogate pair": raising(ValueError("\ud800 line\n" * 100_000)),
    "gives none": lambda: None,
    "gives numbers": lambda: [1.0, 2.0],
    "gives text": lambda: [["a"], ["b"]],
    "gives NaN": lambda: [[math.nan], [0.0]],
    "gives what overflows a float": lambda: [[10**400], [0.0]],
    "gives what has no length": lambda: Odd(),
    "gives one list": lambda: [[1.0]],
}


@pytest.mark.usefixtures("forgets_registrations")
@pytest.mark.parametrize("gives", WRONG.values(), ids=WRONG)
def test_an_estimator_that_breaks_costs_its_group_alone(gives):
    @register_estimator("breaking")
    def breaking(group):
        return gives()

    done = credited(group_of([[1.0], [0.0]]), "breaking", policy="p")
    assert (done.status, done.advantages) == ("failed", ((0.0,), (0.0,)))
    assert 0 < len(done.reason.encode()) < 10_000
    assert "\n" not in done.reason


LARGE = st.sampled_from([0.0, 1e100, -1e100, 1e99, 5e-324, -5e-324, 1e-308, 1.0, None])


@pytest.mark.parametrize(
    "estimator",
    sorted(
        {"gigpo", "grpo", "hgpo", "igpo", "mt_grpo", "process_supervision", "rloo", "turn_gae", "turn_return"}
    ),
)
@given(rewards=st.lists(st.lists(LARGE, min_size=1, max_size=20), min_size=1, max_size=16))
def test_rewards_of_any_size_are_credited_or_the_group_fails(estimator, rewards):
    done = credited(group_of(rewards), estimator, policy="p")
    assert all(math.isfinite(value) for row in done.advantages for value in row)


def peerless(rewards, estimator="turn_return", **params):
    return credited(group_of(rewards), estimator, policy="p", params=params).turns_without_peer


@pytest.mark.parametrize(
    "estimator",
    [name for name in sorted(ESTIMATORS) if name != "turn_gae" and describe(name).over_step is None],
)
def test_a_group_of_one_has_nothing_to_be_compared_with(estimator):
    done = credited(group_of([[1.0, 2.0]]), estimator, policy="p")
    assert (done.status, done.advantages, done.turns_without_peer) == ("alone", ((0.0, 0.0),), 0)
    assert done.reason == "no sibling to compare it with: no advantage"


def test_a_group_of_one_in_which_nothing_was_scored_says_so():
    done = credited(group_of([[None, None]]), "turn_return", policy="p")
    assert (done.status, done.reason) == ("alone", "nothing was scored")


@pytest.mark.parametrize("params", [{"singleton": "raw"}, {"baseline": "none"}], ids=str)
def test_unless_the_user_says_what_it_gets(params):
    done = credited(group_of([[1.0, 2.0]]), "turn_return", policy="p", params=params)
    assert (done.status, done.advantages) == ("ok", ((3.0, 2.0),))


def test_a_group_of_one_beside_others_of_its_step_has_no_advantage():
    step = [
        CreditedGroup(group=group_of(rewards), advantages=(), policy="", estimator="")
        for rewards in ([[9.0]], [[1.0], [0.0]])
    ]
    alone, pair = credited_batch(step, "reinforce_pp_baseline")
    assert (alone.status, alone.advantages, pair.status) == ("alone", ((0.0,),), "ok")


def test_a_group_of_one_has_no_peer_at_all():
    assert peerless([[1.0] * 3], singleton="raw") == 3
    assert peerless([[1.0] * 3], baseline="loo_total", singleton="raw") == 3
    assert peerless([[1.0] * 3], "grpo", singleton="raw") == 3
    assert peerless([[1.0] * 3], "rloo", singleton="raw") == 3
    assert peerless([[1.0]], "gigpo", episode_stats="rows", singleton="raw") == 1


def test_where_nothing_is_kept_raw_for_want_of_a_peer_there_is_nothing_to_count():
    ragged = [[1.0] * 5, [0.0]]
    assert peerless(ragged, baseline="loo_total") == 0
    assert peerless(ragged, baseline="group_mean") == 0
    assert peerless(ragged, baseline="none") == 0
    assert peerless([[1.0] * 3], "grpo") == 0
    assert peerless([[1.0]], "gigpo") == 0
    assert peerless(ragged, "turn_gae") == 0


@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=6), min_size=1, max_size=5))
def test_the_turns_that_are_counted_are_those_that_keep_their_return(rewards):
    """With distinct rewards nothing else leaves an advantage equal to the return."""
    distinct = [
        [value + 10.0 ** -(3 + i) for i, value in enumerate(row, start=n)] for n, row in enumerate(rewards)
    ]
    group = group_of(distinct)
    raw = credited(group, "turn_return", policy="p", params={"baseline": "none"}).advantages
    done = credited(group, "turn_return", policy="p", params={"singleton": "raw"})
    kept = sum(a == b for rows in zip(done.advantages, raw, strict=True) for a, b in zip(*rows, strict=True))
    assert done.turns_without_peer == kept


MIXED = group_of([[0.5], [0.25], [0.0], [1.0]], outcomes=[1.0, None, 0.0, None])
SILENT = group_of([[1.0, 0.0], [None], [0.0]])


def credit(group, missing_outcome="refuse", estimator="turn_return", **rules):
    return credited(group, estimator, policy="p", rules=GroupRules(missing_outcome=missing_outcome, **rules))


@pytest.mark.parametrize("estimator", ["turn_return", "grpo", "rloo", "mt_grpo", "turn_gae", "igpo"])
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
