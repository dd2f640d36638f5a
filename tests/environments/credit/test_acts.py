"""Summaries earn nothing, and are credited as an act in their place would be."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.credit import estimate, register_estimator
from environments.credit.acts import acts_alone
from environments.testing import group_of
from tests.environments.credit.test_properties import BUILT_IN
from tools.errors import CreditError

rewards = st.none() | st.integers(-8, 8).map(lambda eighths: eighths / 8)
"""Numbers whose sums and differences no float rounds."""


@st.composite
def groups(draw, most=4):
    """Groups with summaries anywhere, at the start, at the end and several in a row included."""
    size = draw(st.integers(1, most))
    kinds = [
        draw(st.lists(st.sampled_from(["act", "act", "summary"]), min_size=1, max_size=6).filter(has_act))
        for _ in range(size)
    ]
    turns = [[draw(rewards) if kind == "act" else None for kind in row] for row in kinds]
    anchors = [[draw(st.sampled_from("ab")) for _ in row] for row in kinds]
    return group_of(turns, outcomes=[draw(rewards) for _ in kinds], kinds=kinds, anchors=anchors)


def has_act(kinds):
    return "act" in kinds


def kinds_of(group):
    return [[turn.kind for turn in trajectory.turns] for trajectory in group.trajectories]


def turn_return_by_hand(group, gamma, weight):
    """The ruling, turn by turn: time and index count acts; a summary looks on from the act that follows."""

    def return_from(trajectory, act):
        earned = [
            reward or 0.0
            for reward, turn in zip(trajectory.rewards.turns, trajectory.turns, strict=True)
            if turn.kind == "act"
        ]
        outcome = weight * (trajectory.rewards.outcome or 0.0)
        if act == len(earned):
            return outcome
        later = [gamma**step * reward for step, reward in enumerate(earned[act:])]
        return math.fsum([*later, gamma ** (len(earned) - 1 - act) * outcome])

    advantages = []
    for own in group.trajectories:
        row, act = [], 0
        for turn in own.turns:
            others = [
                return_from(other, act)
                for other in group.trajectories
                if other is not own and len(other.acts) > act
            ]
            baseline = math.fsum(others) / len(others) if others else 0.0
            row.append(return_from(own, act) - baseline)
            act += turn.kind == "act"
        advantages.append(row)
    return advantages


@given(groups(), st.sampled_from([1.0, 0.5, 0.0]), st.sampled_from([1.0, -2.0]))
def test_turn_return_is_what_the_ruling_says(group, gamma, weight):
    got = estimate("turn_return", group, gamma=gamma, outcome_weight=weight, singleton="raw")

    wanted = turn_return_by_hand(group, gamma, weight)
    assert got == [pytest.approx(row, abs=1e-12) for row in wanted]


@pytest.mark.parametrize("name", BUILT_IN)
@given(group=groups())
def test_acts_get_what_they_get_without_summaries(name, group):
    with_them, without = estimate(name, group), estimate(name, acts_alone(group))

    kept = [
        [value for value, kind in zip(row, kinds, strict=True) if kind == "act"]
        for row, kinds in zip(with_them, kinds_of(group), strict=True)
    ]
    assert kept == without


def test_grpo_multiturn_gives_summaries_nothing_and_acts_what_grpo_gives():
    kinds = [["act", "summary", "act"], ["act", "act", "summary"]]
    group = group_of([[None] * 3, [None] * 3], outcomes=[1.0, 0.0], kinds=kinds)

    (up, _, _), (down, _, _) = estimate("grpo", group)
    assert estimate("grpo_multiturn", group) == [[up, 0.0, up], [down, down, 0.0]]


def test_a_summary_that_is_not_trained_gets_nothing():
    group = group_of([[None, 1.0], [0.0]], kinds=[["summary", "act"], ["act"]])
    first, other = group.trajectories
    cut = replace(first, turns=(replace(first.turns[0], trained=False), first.turns[1]))

    assert estimate("turn_return", replace(group, trajectories=(cut, other)))[0] == [0.0, 1.0]


def test_a_critic_values_the_state_before_a_summary_for_it_and_the_state_after_it_for_the_act():
    group = group_of([[1.0, None, 2.0, None]], kinds=[["act", "summary", "act", "summary"]], outcomes=[0.5])

    got = estimate("turn_gae", group, values=[[0.25, 1.0, 2.0, 4.0]])

    assert got == [[3.5 - 0.25, 2.5 - 1.0, 2.5 - 2.0, 0.5 - 4.0]]


@pytest.mark.parametrize(
    ("values", "what"),
    [([[1.0, 2.0]], "2 values of trajectory 0 for its 3 turns"), ([], "values for 0 trajectories")],
    ids=["one_per_act", "none"],
)
def test_values_without_those_of_summaries_are_refused(values, what):
    group = group_of([[1.0, None, 0.0]], kinds=[["act", "summary", "act"]])

    with pytest.raises(CreditError, match=what):
        estimate("turn_gae", group, values=values)


def test_a_reward_at_a_summary_is_refused():
    group = group_of([[1.0, None], [0.0]], kinds=[["act", "summary"], ["act"]])
    first, other = group.trajectories
    scored = replace(first, rewards=replace(first.rewards, turns=(1.0, 0.0)))

    with pytest.raises(CreditError, match="a summary of trajectory 0 has a reward"):
        estimate("grpo", replace(group, trajectories=(scored, other)))


@pytest.mark.usefixtures("forgets_registrations")
def test_an_estimator_of_somebody_else_never_sees_a_summary():
    @register_estimator("seen_kinds")
    def seen_kinds(group):
        assert {turn.kind for each in group.trajectories for turn in each.turns} == {"act"}
        return [[float(turn.index) for turn in each.turns] for each in group.trajectories]

    kinds = [["summary", "act", "summary", "act", "summary"], ["act"]]
    group = group_of([[None] * 5, [1.0]], outcomes=[1.0, 1.0], kinds=kinds)
    assert estimate("seen_kinds", group) == [[1.0, 1.0, 3.0, 3.0, 4.0], [0.0]]
