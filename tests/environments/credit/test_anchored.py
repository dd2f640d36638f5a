"""GiGPO where golden vectors do not look: states that are missing, and one-turn groups."""

import pytest

from environments.credit import gigpo, grpo
from environments.testing import group_of
from tools.errors import CreditError


def test_states_on_some_turns_only_are_refused_by_trajectory_and_turn():
    group = group_of([[1.0], [0.0, 0.0]], anchors=[["a"], ["a", None]])

    with pytest.raises(CreditError, match="trajectory 1, turn 2 has no anchor state"):
        gigpo(group)


def test_without_any_state_the_episode_term_is_left():
    group = group_of([[1.0, 2.0], [0.0]])

    assert gigpo(group) == grpo(group, norm_by_std=False)


def test_equal_states_are_compared_across_time_and_siblings():
    group = group_of([[0.0, 4.0], [0.0, 0.0]], anchors=[["a", "b"], ["b", "c"]])

    step = [
        [whole - part for whole, part in zip(*rows, strict=True)]
        for rows in zip(gigpo(group, gamma=1.0), gigpo(group, gamma=1.0, step_weight=0.0), strict=True)
    ]

    assert step == [[0.0, 2.0], [-2.0, 0.0]]


def test_a_lone_row_stays_raw_only_under_the_reference_s_statistics():
    group = group_of([[3.0]], anchors=[["a"]])

    assert gigpo(group) == [[0.0]]
    assert gigpo(group, episode_stats="rows") == [[3.0]]
