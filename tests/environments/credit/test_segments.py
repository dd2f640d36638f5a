"""MT-GRPO where golden vectors do not look: which turn ends the first segment, and unscored turns."""

import dataclasses

from environments.credit import grpo, mt_grpo
from environments.testing import group_of

EXACT = {"eps": 0.0, "ddof": 0}


def failing_first_tool(group):
    first = group.trajectories[0]
    refused = tuple(dataclasses.replace(r, error="tool_error") for r in first.turns[0].tool_results)
    turns = (dataclasses.replace(first.turns[0], tool_results=refused), *first.turns[1:])
    return dataclasses.replace(
        group, trajectories=(dataclasses.replace(first, turns=turns), *group.trajectories[1:])
    )


def test_the_first_segment_ends_with_the_first_tool_that_answered():
    group = group_of([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])

    assert mt_grpo(group, **EXACT)[0] == [1.0, 0.0, 0.0]
    assert mt_grpo(failing_first_tool(group), **EXACT)[0] == [1.0, 1.0, 0.0]


def test_a_scalar_environment_gets_grpo():
    group = group_of(None, outcomes=[1.0, 0.0, 0.0], lengths=[[1, 1], [1], [1, 1]])

    assert mt_grpo(group, eps=1e-6) == grpo(group)
    assert mt_grpo(group, segments="per_turn", eps=1e-6) == grpo(group)


def test_per_turn_a_session_that_earns_later_is_not_credited_earlier():
    group = group_of([[0.0, 5.0], [0.0, 0.0]])

    assert mt_grpo(group, segments="per_turn", **EXACT) == [[0.0, 1.0], [0.0, -1.0]]


def test_per_turn_an_unscored_turn_is_not_compared():
    group = group_of([[4.0], [None], [0.0]])

    assert mt_grpo(group, segments="per_turn", **EXACT) == [[1.0], [0.0], [-1.0]]
