"""What a trainer gets: columns that agree with each other and with the turns."""

from dataclasses import replace

import orjson
from hypothesis import given
from hypothesis import strategies as st

from environments.testing import group_of
from environments.trajectory import IGNORED, NOT_SAMPLED, CreditedGroup
from environments.wire import list_scores, token_advantages

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
    advantages = [[draw(st.floats(-5, 5)) for _ in row] for row in rewards]
    return credited(group_of(rewards, lengths=lengths), advantages)


@given(credited_groups())
def test_tokens_masks_logprobs_and_advantages_are_equally_long(group):
    columns = token_advantages(group)
    for row in zip(
        columns["tokens"],
        columns["masks"],
        columns["advantages"],
        columns["inference_logprobs"],
        strict=True,
    ):
        assert len({len(column) for column in row}) == 1


@given(credited_groups())
def test_a_mask_is_the_token_id_or_ignored(group):
    columns = token_advantages(group)
    for tokens, mask in zip(columns["tokens"], columns["masks"], strict=True):
        assert all(label in (token, IGNORED) for token, label in zip(tokens, mask, strict=True))


@given(credited_groups())
def test_every_trainable_token_is_in_exactly_one_span(group):
    columns = token_advantages(group)
    for mask, override in zip(columns["masks"], columns["overrides"], strict=True):
        covered = [p for start, end in override["turn_spans"] for p in range(start, end)]
        assert covered == [p for p, label in enumerate(mask) if label != IGNORED]


@given(credited_groups())
def test_an_advantage_is_its_turns_over_the_span_and_zero_elsewhere(group):
    columns = token_advantages(group)
    for tokens, override in zip(columns["advantages"], columns["overrides"], strict=True):
        expected = [0.0] * len(tokens)
        for (start, end), value in zip(override["turn_spans"], override["turn_advantages"], strict=True):
            expected[start:end] = [value] * (end - start)
        assert tokens == expected


@given(credited_groups())
def test_both_views_are_plain_json(group):
    for columns in (token_advantages(group), list_scores(group)):
        assert orjson.loads(orjson.dumps(columns)) == columns


def test_logprobs_ride_along_with_the_convention_where_nothing_was_sampled():
    columns = token_advantages(credited(group_of([[1.0]]), [[0.5]]))
    assert columns["inference_logprobs"] == [[NOT_SAMPLED, -1.0]]


def test_the_api_view_has_one_scalar_score_per_row():
    columns = token_advantages(credited(group_of([[1.0, None], [0.5]], outcomes=[2.0, None]), [[0, 0], [0]]))
    assert columns["scores"] == [3.0, 0.5]


def test_a_scalar_environment_sends_plain_grpo_data():
    group = group_of(None, outcomes=[1.0, 0.0], lengths=[[1], [1]])
    columns = token_advantages(credited(group, [[0.5], [-0.5]]))
    assert (columns["scores"], columns["advantages"], columns["overrides"]) == ([1.0, 0.0], None, None)
    assert not any("reward" in message for chat in columns["messages"] for message in chat)


def test_each_assistant_message_carries_its_reward():
    columns = token_advantages(credited(group_of([[1.0, None]]), [[0.0, 0.0]]))
    spoken = [message for message in columns["messages"][0] if message["role"] == "assistant"]
    assert [message["reward"] for message in spoken] == [1.0, None]


def test_every_message_has_role_and_content():
    columns = token_advantages(credited(group_of([[1.0, 2.0]]), [[0.0, 0.0]]))
    assert all({"role", "content"} <= message.keys() for chat in columns["messages"] for message in chat)


def test_group_overrides_is_a_dict_because_atropos_breaks_on_none():
    assert token_advantages(credited(group_of([[1.0]]), [[0.0]]))["group_overrides"] == {}


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
