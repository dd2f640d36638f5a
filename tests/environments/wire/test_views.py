"""What a trainer gets: columns that agree with each other and with the turns."""

from collections import Counter
from dataclasses import replace

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.testing import group_of
from environments.trajectory import IGNORED, CreditedGroup, WeightSpan
from environments.wire import views
from environments.wire.training_rows import columns_of
from environments.wire.views import VIEWS, list_scores

REWARD = st.none() | st.floats(-10, 10)
GROUPS = st.lists(st.lists(REWARD, min_size=1, max_size=5), min_size=1, max_size=4)


def credited(group, advantages):
    return CreditedGroup(
        group=group, advantages=tuple(map(tuple, advantages)), policy="p", estimator="turn_return"
    )


@st.composite
def credited_groups(draw):
    rewards = draw(GROUPS)
    lengths = [[draw(st.integers(0, 4)) for _ in row] for row in rewards]
    group = group_of(rewards, lengths=lengths)
    trajectories = [
        replace(each, turns=tuple(replace(turn, trained=draw(st.booleans())) for turn in each.turns))
        for each in group.trajectories
    ]
    advantages = [
        [draw(st.floats(-5, 5)) if turn.trained else 0.0 for turn in each.turns] for each in trajectories
    ]
    return credited(replace(group, trajectories=tuple(trajectories)), advantages)


def trained_tokens(turn):
    return turn.span.end - turn.span.start if turn.trained else 0


def token_advantages(group):
    return columns_of(views.token_advantages(group))


def turn_rows(group):
    return [columns_of(each) for each in views.turn_rows(group)]


def prefix_rows(group):
    return [columns_of(each) for each in views.prefix_rows(group)]


@given(credited_groups())
def test_the_trainable_tokens_are_those_of_the_turns_that_are_trained(group):
    columns = token_advantages(group)
    for mask, trajectory in zip(columns["masks"], group.group.trajectories, strict=True):
        of_turns = [
            position
            for turn in trajectory.turns
            if turn.trained
            for position in range(turn.span.start, turn.span.end)
        ]
        assert of_turns == [position for position, label in enumerate(mask) if label != IGNORED]


@given(credited_groups())
def test_an_advantage_is_its_turns_over_the_span_and_zero_elsewhere(group):
    columns = token_advantages(group)
    for tokens, override in zip(columns["advantages"], columns["overrides"], strict=True):
        expected = [0.0] * len(tokens)
        for (start, end), value in zip(override["turn_spans"], override["turn_advantages"], strict=True):
            expected[start:end] = [value] * (end - start)
        assert tokens == expected


@given(credited_groups())
def test_every_view_is_plain_json(group):
    shown = [columns_of(each) for view in VIEWS.values() for each in view(group)]
    for columns in [*shown, list_scores(group)]:
        assert orjson.loads(orjson.dumps(columns)) == columns


def test_overrides_name_the_token_of_a_turn_from_which_other_weights_sampled_it():
    made = group_of([[1.0, 0.5], [0.0]])
    first, second = made.trajectories
    spans = (WeightSpan(start=0, version="a"), WeightSpan(start=1, version="b"))
    turns = (first.turns[0], replace(first.turns[1], weight_spans=spans))
    group = replace(made, trajectories=(replace(first, turns=turns), second))
    overrides = token_advantages(credited(group, ((1.0, 0.5), (0.0,))))["overrides"]
    assert overrides[0]["weight_spans"] == [[], [[0, "a"], [1, "b"]]]
    assert "weight_spans" not in overrides[1]


@given(credited_groups())
def test_turn_rows_has_one_row_per_trained_turn_scored_with_its_advantage(group):
    sampled = [
        advantage * trained_tokens(turn) / 1024
        for trajectory, advantages in zip(group.group.trajectories, group.advantages, strict=True)
        for turn, advantage in zip(trajectory.turns, advantages, strict=True)
        if trained_tokens(turn)
    ]
    groups = turn_rows(group)
    assert [view["scores"] for view in groups] == [[advantage] for advantage in sampled]
    assert all(view["group_overrides"] == {"group_size": 1} for view in groups)


def test_a_turn_row_ends_with_its_turn_and_trains_nothing_else():
    groups = turn_rows(credited(group_of([[1.0, 2.0]], lengths=[[2, 1]]), [[0.5, -0.5]]))
    assert [view["tokens"][0] for view in groups] == [[1, 2, 2], [1, 2, 2, 3, 2]]
    assert [view["masks"][0] for view in groups] == [
        [IGNORED, 2, 2],
        [IGNORED, IGNORED, IGNORED, IGNORED, 2],
    ]


def test_a_turn_row_carries_the_conversation_up_to_its_turn_with_the_rewards():
    groups = turn_rows(credited(group_of([[1.0, 2.0]]), [[0.5, -0.5]]))
    assert [message["role"] for message in groups[0]["messages"][0]] == ["user", "assistant"]
    spoken = [m["reward"] for m in groups[1]["messages"][0] if m["role"] == "assistant"]
    assert spoken == [1.0, 2.0]


def test_a_prefix_row_trains_every_turn_up_to_its_last():
    groups = prefix_rows(credited(group_of([[1.0, 2.0]]), [[0.5, -0.5]]))
    assert [view["masks"][0] for view in groups] == [[IGNORED, 2], [IGNORED, 2, IGNORED, 2]]


def token_weights(group):
    """What a trainer that averages a row over its tokens weighs each trained token's log-probability with."""
    (row,) = group.rows
    trained = [position for position, label in enumerate(row.mask) if label != IGNORED]
    return {position: row.score / len(trained) for position in trained}


@given(credited_groups(), st.integers(1, 5000))
def test_a_trainer_that_averages_a_turn_row_over_its_tokens_weighs_every_token_with_its_turns_advantage(
    group, divisor
):
    shown = views.turn_rows(group, divisor)
    rows = iter(shown)
    for trajectory, advantages in zip(group.group.trajectories, group.advantages, strict=True):
        for turn, advantage in zip(trajectory.turns, advantages, strict=True):
            tokens = trained_tokens(turn)
            if tokens:
                weights = token_weights(next(rows)).values()
                assert len(weights) == tokens
                assert list(weights) == pytest.approx([advantage / divisor] * tokens, rel=1e-12, abs=1e-300)
    assert {row.override["score_divisor"] for each in shown for row in each.rows} <= {divisor}


@pytest.mark.parametrize("weighting", ["once", "repeated"])
@given(credited_groups())
def test_prefix_rows_weigh_a_turns_tokens_with_its_own_advantage_or_repeated_with_all_later_ones_too(
    weighting, group
):
    rows = iter(views.prefix_rows(group, 7, weighting))
    for trajectory, advantages in zip(group.group.trajectories, group.advantages, strict=True):
        spans = [turn.span for turn in trajectory.turns]
        sampled = [k for k, turn in enumerate(trajectory.turns) if trained_tokens(turn)]
        weights = Counter()
        for _ in sampled:
            for position, weight in token_weights(next(rows)).items():
                weights[position] += weight
        for k in sampled:
            later = advantages[k:] if weighting == "repeated" else advantages[k : k + 1]
            total = sum(each for turn, each in enumerate(later, start=k) if turn in sampled)
            for position in range(spans[k].start, spans[k].end):
                assert weights[position] * 7 == pytest.approx(total, abs=1e-12)


def test_rows_of_their_own_length_are_not_scaled_and_say_so():
    groups = views.turn_rows(credited(group_of([[1.0, 2.0]], lengths=[[3, 1]]), [[0.5, -0.5]]), "own_length")
    assert [row.score for group in groups for row in group.rows] == [0.5, -0.5]
    assert groups[0].rows[0].override["score_divisor"] == "own_length"


@given(credited_groups())
def test_rows_of_a_group_are_numbered_so_that_a_repeat_can_be_told_from_a_sibling(group):
    for name, view in VIEWS.items():
        numbers = [row.override["row"] for each in view(group) for row in each.rows if row.override]
        assert numbers == list(range(len(numbers))), name


def test_a_forked_trajectory_gives_one_row_per_fork_with_its_own_turns():
    group = group_of([[1.0, 2.0]])
    whole = group.trajectories[0]
    first, second = whole.turns
    forked = replace(
        whole,
        turns=(first, replace(second, span=replace(second.span, row=1))),
        rows=(whole.rows[0], whole.rows[0]),
    )
    columns = list_scores(credited(replace(group, trajectories=(forked,)), [[0.25, 0.75]]))
    assert columns["scores"] == [[1.0], [2.0]]
    assert [override["turn_advantages"] for override in columns["overrides"]] == [[0.25], [0.75]]
