"""A forked row holds the messages that its model saw, with the rewards of its own turns."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.testing import group_of
from environments.trajectory import CreditedGroup, Kept, Message, Span, TokenRow
from environments.wire.views import VIEWS, every_row
from tests.environments.record.any_group import Draw


def rows_of(trajectory, view=every_row):
    group = replace(group_of([[1.0]]), trajectories=(trajectory,))
    advantages = ((0.5,) * len(trajectory.turns),)
    return view(CreditedGroup(group=group, advantages=advantages, policy="p", estimator="e"))


def forked(rewards, rows):
    """A trajectory whose turns were sampled in these rows."""
    (whole,) = group_of([rewards]).trajectories
    turns = tuple(
        replace(turn, span=Span(row=row, start=1 + 2 * index, end=2 + 2 * index))
        for index, (turn, row) in enumerate(zip(whole.turns, rows, strict=True))
    )
    row = TokenRow(token_ids=(7,) * (2 * len(turns) + 1), logprobs=None)
    return replace(whole, turns=turns, rows=(row,) * (max(rows) + 1))


def contents(messages):
    return [message["content"] for message in messages]


def rewards(messages):
    return [message["reward"] for message in messages if "reward" in message]


def test_a_row_that_was_left_ends_with_its_last_turn_and_has_the_rewards_of_those_sampled_in_it():
    first, second = rows_of(forked([0.1, 0.2, 0.3], [0, 0, 1])).rows
    assert contents(first.messages) == ["prompt", "turn 0", "ok", "turn 1"]
    assert contents(second.messages) == ["prompt", "turn 0", "ok", "turn 1", "ok", "turn 2"]
    assert (rewards(first.messages), rewards(second.messages)) == ([0.1, 0.2], [0.3])
    assert (first.override["turn_rewards"], second.override["turn_rewards"]) == ([0.1, 0.2], [0.3])


@pytest.mark.parametrize("view", ["turn_rows", "prefix_rows"])
def test_a_row_of_its_own_ends_with_its_turn_and_has_the_rewards_of_its_token_row(view):
    shown = [group.rows[0].messages for group in rows_of(forked([0.1, 0.2, 0.3], [0, 1, 1]), VIEWS[view])]
    assert [contents(messages)[-1] for messages in shown] == ["turn 0", "turn 1", "turn 2"]
    assert [rewards(messages) for messages in shown] == [[0.1], [0.2], [0.2, 0.3]]


def test_a_rewritten_context_is_shown_as_the_model_saw_it():
    trajectory = forked([0.1, 0.2, 0.3], [0, 0, 1])
    summary = Message(role="user", content="so far")
    context = (Kept(start=0, end=1), summary, Kept(start=3, end=5))
    turns = (*trajectory.turns[:2], replace(trajectory.turns[2], context=context))
    _, second = rows_of(replace(trajectory, turns=turns)).rows
    assert contents(second.messages) == ["prompt", "so far", "turn 1", "ok", "turn 2"]
    assert rewards(second.messages) == [0.3]


@given(st.integers(0, 2**32))
@settings(deadline=None)
def test_the_rewards_in_the_messages_of_all_rows_are_those_of_all_turns_once(seed):
    trajectory = Draw(seed).trajectory()
    if trajectory.rewards is None or trajectory.rewards.turns is None:
        return
    bare = replace(trajectory, turns=tuple(replace(turn, context=None) for turn in trajectory.turns))
    shown = [reward for row in rows_of(bare).rows for reward in rewards(row.messages)]
    assert shown == list(trajectory.rewards.turns)
