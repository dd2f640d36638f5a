"""What trainers of completions get of a credited group."""

import math
from dataclasses import replace

import pytest

from environments.lab.probe.canaries import CANARIES, GROUP_SIZE, VOCABULARY, condensed_context
from environments.trainers.completion_columns import (
    GroupLeftOut,
    completion_columns,
    mean_score,
)
from environments.wire.credited_rows import credited_rows

GROUPS = {name: make() for name, make in CANARIES.items()}
every_canary = pytest.mark.parametrize("credited", GROUPS.values(), ids=GROUPS)


@every_canary
def test_prompt_and_completion_are_the_row(credited):
    columns = completion_columns(credited)
    whole = [
        prompt + completion
        for prompt, completion in zip(columns.prompt_ids, columns.completion_ids, strict=True)
    ]
    assert whole == [row.tokens for row in credited_rows(credited)]


@every_canary
def test_a_completion_begins_with_the_first_token_that_was_sampled(credited):
    columns = completion_columns(credited)
    starts = [row.turns[0].span.start for row in credited_rows(credited)]
    assert [len(prompt) for prompt in columns.prompt_ids] == starts


@every_canary
def test_a_token_has_its_turns_advantage_where_it_is_trained_and_none_elsewhere(credited):
    columns = completion_columns(credited)
    for row, (mask, advantages) in zip(
        credited_rows(credited), zip(columns.tool_mask, columns.advantages, strict=True), strict=True
    ):
        expected = {}
        for turn, advantage in zip(row.turns, row.turn_advantages, strict=True):
            expected |= dict.fromkeys(range(turn.span.start, turn.span.end), advantage)
        start = row.turns[0].span.start
        assert mask == [int(start + index in expected) for index in range(len(mask))]
        assert advantages == [expected.get(start + index, 0.0) for index in range(len(mask))]


def test_logprobs_are_those_of_sampled_tokens_and_zero_elsewhere():
    columns = completion_columns(GROUPS["unequal lengths"])
    for mask, logprobs in zip(columns.tool_mask, columns.logprobs, strict=True):
        assert [bool(label) for label in mask] == [value < 0 for value in logprobs]


@every_canary
def test_missing_rows_are_padding_in_which_nothing_is_trained(credited):
    there = completion_columns(credited).rows
    columns = completion_columns(credited, rows=8, pad_id=7)
    assert columns.rows == 8
    assert columns.completion_ids[there:] == [[7]] * (8 - there)
    assert columns.tool_mask[there:] == [[0]] * (8 - there)
    assert columns.advantages[there:] == [[0.0]] * (8 - there)


def test_a_group_with_more_rows_than_are_taken_is_refused_with_their_number():
    with pytest.raises(
        GroupLeftOut, match="4 token rows, since 1 of its 3 trajectories forked, and 3 are taken"
    ):
        completion_columns(condensed_context(), rows=3)


@every_canary
def test_a_canary_has_room_in_a_group_and_small_ids(credited):
    columns = completion_columns(credited, rows=GROUP_SIZE)
    assert max(max(ids) for ids in columns.prompt_ids + columns.completion_ids) < VOCABULARY
    assert credited.status == "ok"


@pytest.mark.parametrize("advantage", [1e60, -1e60, math.nan], ids=["large", "small", "nan"])
def test_an_advantage_that_is_no_float32_leaves_its_group_out(advantage):
    group = GROUPS["unequal lengths"]
    (first, *rest) = group.advantages
    with pytest.raises(GroupLeftOut, match=r"group canary-unequal has an advantage of .*, too large"):
        completion_columns(replace(group, advantages=((advantage, *first[1:]), *rest)))


def test_tokens_that_were_never_sampled_leave_their_group_out():
    done = GROUPS["unequal lengths"]
    first, *rest = done.group.trajectories
    made_up = replace(done.group, trajectories=(replace(first, exact=False), *rest))
    with pytest.raises(GroupLeftOut, match=r"tokens that were never sampled \(sibling 0\)"):
        completion_columns(replace(done, group=made_up))


def test_a_rollout_without_a_score_is_not_counted_as_zero():
    first, second, *_ = GROUPS["unscored turns"].group.trajectories
    unscored = replace(second, rewards=None)
    assert mean_score([first, unscored]) == first.score
    assert math.isnan(mean_score([unscored]))
