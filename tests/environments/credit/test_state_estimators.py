"""Equal states of siblings; papers without code are checked against a derivation in fractions."""

import math
from collections import defaultdict
from dataclasses import replace
from fractions import Fraction

import pytest

from environments.credit import estimate
from environments.credit.array_credit import turn_advantages
from environments.testing import group_of
from tools.errors import CreditError

REWARDS = [[0, 0, 1], [0, 0], [0, 1], [0, 0, 0]]
STATES = [["s", "a", "b"], ["s", "a"], ["s", "b"], ["s", "a", "a"]]
ACTIONS = [["left", "go", "buy"], ["left", "end"], ["right", "buy"], ["left", "wait", "end"]]
PLACES = [(row, turn) for row, states in enumerate(STATES) for turn in range(len(states))]
GAMMA, LAM = Fraction(1, 2), Fraction(1, 4)


def returns(gamma):
    found = {}
    for row, turn in reversed(PLACES):
        found[row, turn] = Fraction(REWARDS[row][turn]) + gamma * found.get((row, turn + 1), 0)
    return found


def means(values, key):
    groups = defaultdict(list)
    for place in PLACES:
        groups[key(*place)].append(values[place])
    return {name: sum(each) / len(each) for name, each in groups.items()}


def credit(estimator, **params):
    return turn_advantages(REWARDS, [0] * 4, estimator=estimator, anchors=STATES, actions=ACTIONS, **params)


def rows(values):
    return [[float(values[row, turn]) for turn in range(len(STATES[row]))] for row in range(4)]


def near(wanted):
    return [pytest.approx(row, rel=1e-12, abs=1e-12) for row in wanted]


def derived_gae():
    value = means(returns(GAMMA), lambda row, turn: STATES[row][turn])
    advantages = {}
    for row, turn in reversed(PLACES):
        following = value[STATES[row][turn + 1]] if turn + 1 < len(STATES[row]) else 0
        delta = REWARDS[row][turn] + GAMMA * following - value[STATES[row][turn]]
        advantages[row, turn] = delta + GAMMA * LAM * advantages.get((row, turn + 1), 0)
    return advantages


def test_gagpo_is_gae_over_mean_returns_of_states():
    got = credit("gagpo", gamma=0.5, lam=0.25, norm_by_std=False)
    assert got == near(rows(derived_gae()))


def test_gagpo_normalises_over_the_turns_of_its_group():
    values = derived_gae()
    centre = sum(values.values()) / len(values)
    variance = sum((value - centre) ** 2 for value in values.values()) / (len(values) - 1)
    wanted = {place: (value - centre) / Fraction(math.sqrt(variance)) for place, value in values.items()}
    assert credit("gagpo", gamma=0.5, lam=0.25, eps=0.0) == near(rows(wanted))


def test_rtmc_compares_an_action_with_its_state():
    own = returns(GAMMA)
    of_state = means(own, lambda row, turn: STATES[row][turn])
    of_action = means(own, lambda row, turn: (STATES[row][turn], ACTIONS[row][turn]))
    wanted = {
        (row, turn): of_action[STATES[row][turn], ACTIONS[row][turn]] - of_state[STATES[row][turn]]
        for row, turn in PLACES
    }
    assert credit("rtmc", gamma=0.5) == near(rows(wanted))


def test_salt_averages_scores_over_equal_steps():
    def step(row, turn):
        return STATES[row][turn], ACTIONS[row][turn], ([*STATES[row], None])[turn + 1]

    scores = [Fraction(sum(row)) for row in REWARDS]
    of_step = means({(row, turn): scores[row] for row, turn in PLACES}, step)
    wanted = {place: of_step[step(*place)] - sum(scores) / 4 for place in PLACES}
    assert credit("salt", norm_by_std=False) == near(rows(wanted))


@pytest.mark.parametrize("estimator", ["gagpo", "hgpo", "rtmc"])
def test_without_states_no_turn_is_compared(estimator):
    assert estimate(estimator, group_of([[1.0, 0.5], [0.0]])) == [[0.0, 0.0], [0.0]]


@pytest.mark.parametrize("estimator", ["gigpo", "hgpo", "gagpo", "rtmc", "salt", "tree_grpo"])
def test_states_on_some_turns_only_are_refused_by_trajectory_and_turn(estimator):
    group = group_of([[1.0], [0.0, 0.0]], anchors=[["a"], ["a", None]])
    with pytest.raises(CreditError, match="trajectory 1, turn 2 has no anchor state"):
        estimate(estimator, group)


def test_a_level_of_hgpo_without_difference_is_left_out_of_the_mean():
    states = [["a", "c"], ["b", "c"], ["b", "c"]]
    got = turn_advantages(
        [[0, 2], [0, 1], [0, 1]], [0] * 3, estimator="hgpo", mode="mean_norm", gamma=1.0, anchors=states
    )
    assert got[0][1] == pytest.approx(2 / 3)
    assert got[1][1] == pytest.approx(-1 / 3)


def test_an_action_is_its_tool_calls_where_there_are_any():
    group = group_of([[1.0], [0.0], [0.0]], anchors=[["s"], ["s"], ["s"]])
    texts = ("buy", "buy", "wait")
    said = tuple(
        replace(each, turns=(replace(each.turns[0], message=replace(each.turns[0].message, content=text)),))
        for each, text in zip(group.trajectories, texts, strict=True)
    )
    assert estimate("rtmc", replace(group, trajectories=said)) == near([[1 / 6], [1 / 6], [-1 / 3]])
