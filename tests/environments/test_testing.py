"""group_of builds real values: shapes, tokens, scores, and what it refuses."""

import pytest

from environments.testing import group_of
from tools.errors import UsageError


def test_rewards_outcomes_and_states_land_where_they_belong():
    group = group_of([[1.0, None]], outcomes=[0.5], anchors=[["a", "b"]])

    (trajectory,) = group.trajectories
    assert trajectory.rewards.turns == (1.0, None)
    assert (trajectory.rewards.outcome, trajectory.score) == (0.5, 1.5)
    assert [turn.anchor for turn in trajectory.turns] == ["a", "b"]


def test_a_scalar_environment_has_a_score_and_no_turn_rewards():
    (trajectory,) = group_of(None, outcomes=[0.5], lengths=[[1, 1, 1]]).trajectories

    assert trajectory.rewards.turns is None
    assert (trajectory.score, len(trajectory.turns)) == (0.5, 3)


def test_spans_cover_the_sampled_tokens_and_nothing_else():
    (trajectory,) = group_of([[0.0, 0.0]], lengths=[[2, 3]]).trajectories

    sampled = [place for place, logprob in enumerate(trajectory.rows[0].logprobs) if logprob <= 0]
    assert [(turn.span.start, turn.span.end) for turn in trajectory.turns] == [(1, 3), (4, 7)]
    assert sampled == [1, 2, 4, 5, 6]


def test_every_turn_but_the_last_is_answered_by_a_tool():
    (trajectory,) = group_of([[0.0, 0.0, 0.0]]).trajectories

    assert [len(turn.tool_results) for turn in trajectory.turns] == [1, 1, 0]
    assert [len(turn.message.tool_calls) for turn in trajectory.turns] == [1, 1, 0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"turn_rewards": [[0.0]], "outcomes": [1.0, 2.0]}, "2 outcomes for 1 trajectories"),
        (
            {"turn_rewards": [[0.0]], "anchors": [["a", "b"]]},
            r"anchors has \[2\] turns, the rewards have \[1\]",
        ),
        ({"turn_rewards": [[0.0]], "lengths": [[1], [1]]}, r"lengths has \[1, 1\] turns"),
        ({"turn_rewards": None, "outcomes": [1.0]}, "needs lengths"),
    ],
)
def test_shapes_that_do_not_match_are_refused(arguments, message):
    with pytest.raises(UsageError, match=message):
        group_of(**arguments)
