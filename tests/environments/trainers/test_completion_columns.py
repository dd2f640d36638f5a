"""What trainers get of a credited group: columns of completions, and rows of next-token losses."""

import math
from dataclasses import replace

import orjson
import pytest

from environments.trainers.completion_columns import (
    GroupLeftOut,
    behaviour_ratios,
    completion_columns,
    mean_score,
    shifted_post,
    shifted_rows,
)
from environments.trajectory import IGNORED, TokenRow
from environments.wire.credited_rows import credited_rows
from environments.wire.payloads import Shape, pack, post_text
from tests.environments.trainers.groups import CANARY_GROUPS, GROUPS, UNTRAINED, every_group
from tests.tables import cases
from tools.errors import WireError
from turnwise.lab.probe.canaries import GROUP_SIZE, make_condensed_context

UNEQUAL, UNSCORED = GROUPS["unequal lengths"], GROUPS["unscored turns"]


@cases("credited", CANARY_GROUPS.values(), ids=CANARY_GROUPS)
def test_a_row_is_cut_before_its_first_sampled_token_and_each_token_has_its_turns_advantage(credited):
    columns = completion_columns(credited)
    for index, row in enumerate(credited_rows(credited)):
        start = row.turns[0].span.start
        assert columns.prompt_ids[index] + columns.completion_ids[index] == row.tokens
        assert len(columns.prompt_ids[index]) == start
        expected = {}
        for turn, advantage in zip(row.turns, row.turn_advantages, strict=True):
            expected |= dict.fromkeys(range(turn.span.start - start, turn.span.end - start), advantage)
        width = range(len(columns.completion_ids[index]))
        assert columns.tool_mask[index] == [int(token in expected) for token in width]
        assert columns.advantages[index] == [expected.get(token, 0.0) for token in width]


@cases("credited", CANARY_GROUPS.values(), ids=CANARY_GROUPS)
def test_missing_rows_are_padding_in_which_nothing_is_trained(credited):
    there = completion_columns(credited).rows
    columns = completion_columns(credited, rows=8, pad_id=7)
    assert columns.rows == 8
    assert columns.completion_ids[there:] == [[7]] * (8 - there)
    assert columns.tool_mask[there:] == [[0]] * (8 - there)
    assert columns.advantages[there:] == [[0.0]] * (8 - there)


@cases("credited", CANARY_GROUPS.values(), ids=CANARY_GROUPS)
def test_the_tokens_that_are_trained_have_the_index_of_their_turn_in_any_row(credited):
    columns = completion_columns(credited, rows=8)
    rows = [*credited_rows(credited)]
    for row, mask, ids in zip(rows, columns.tool_mask, columns.turn_ids, strict=False):
        assert [each >= 0 for each in ids] == [each == 1 for each in mask]
        assert list(dict.fromkeys(each for each in ids if each >= 0)) == [
            turn.index for turn in row.turns if turn.trained
        ]
    assert columns.turn_ids[len(rows) :] == [[-1]] * (8 - len(rows))


def test_turns_of_a_conversation_in_several_rows_are_counted_through():
    ids = [{*each} - {-1} for each in completion_columns(make_condensed_context()).turn_ids]
    assert ids == [{0, 1}, {2, 3}, {0, 1}, {0}]


@cases(("cut", "first"), [(5.0, 4.0), (3.0, 3.0)], ids=["below the cut", "cut"])
def test_a_turns_behaviour_ratio_is_the_geometric_mean_of_its_tokens_up_to_the_cut(cut, first):
    sampled, old = [1 / 4, 1 / 16, 1.0, 1 / 2], [1 / 2, 1 / 2, 1.0, 1 / 4]  # ratios 2, 8, -, 1/2
    logs = [[math.log(each) for each in of] for of in (old, sampled)]
    assert behaviour_ratios([0, 0, -1, 1], *logs, cut=cut) == pytest.approx([first, first, 1.0, 0.5])


def test_a_behaviour_ratio_keeps_nan():
    assert math.isnan(behaviour_ratios([0], [math.nan], [0.0], cut=2.0)[0])


def test_a_group_with_more_rows_than_are_taken_is_refused_with_their_number():
    with pytest.raises(
        GroupLeftOut, match="4 token rows, since 1 of its 3 trajectories forked, and 3 are taken"
    ):
        completion_columns(make_condensed_context(), rows=3)


@cases("advantage", [1e60, -1e60, math.nan])
def test_an_advantage_that_is_no_float32_leaves_its_group_out(advantage, caplog):
    (first, *rest) = UNEQUAL.advantages
    wrong = replace(UNEQUAL, advantages=((advantage, *first[1:]), *rest))
    with pytest.raises(GroupLeftOut, match=r"group canary-unequal has an advantage of .*, too large"):
        completion_columns(wrong)
    assert shifted_rows(wrong) == []
    assert "too large for the float32 of a trainer" in caplog.text


def test_a_rollout_without_a_score_is_not_counted_as_zero():
    first, second, *_ = UNSCORED.group.trajectories
    unscored = replace(second, rewards=None)
    assert mean_score([first, unscored]) == first.score
    assert math.isnan(mean_score([unscored]))


# Rows of next-token losses, of a group and of a post of it.


def posts_of(credited, view="token_advantages"):
    parts = pack(credited, Shape(group_size=GROUP_SIZE, view=view)).parts
    return [orjson.loads(post_text(part.body)) for part in parts]


@every_group
def test_what_stands_at_an_index_is_about_the_token_after_it_in_groups_and_in_posts(credited):
    whole = [row for row in credited_rows(credited) if any(label != IGNORED for label in row.mask)]
    assert [row for post in posts_of(credited) for row in shifted_post(post)] == shifted_rows(credited)
    for shifted, row in zip(shifted_rows(credited), whole, strict=True):
        assert shifted.input_ids == row.tokens[:-1]
        assert shifted.target_ids == row.tokens[1:]
        assert shifted.mask == [int(label != IGNORED) for label in row.mask[1:]]
        assert shifted.advantages == row.advantages[1:]


def with_first(trajectory, advantages=UNEQUAL.advantages[0]):
    """The canary with another first rollout."""
    group = replace(UNEQUAL.group, trajectories=(trajectory, *UNEQUAL.group.trajectories[1:]))
    return replace(UNEQUAL, group=group, advantages=(advantages, *UNEQUAL.advantages[1:]))


def test_a_first_token_that_was_sampled_is_no_target_and_its_row_keeps_the_others():
    first, *others = UNEQUAL.group.trajectories
    begun, *turns = first.turns
    turns = (replace(begun, span=replace(begun.span, start=0)), *turns)
    row, *_ = shifted_rows(with_first(replace(first, turns=turns)))
    assert sum(row.mask) == sum(turn.span.end - turn.span.start for turn in turns) - 1
    assert len(row.mask) == len(row.advantages) == len(row.logprobs) == len(row.input_ids)
    alone = replace(begun, span=replace(begun.span, start=0, end=1))
    single = replace(first, turns=(alone,), rows=(TokenRow(token_ids=(7,), logprobs=(-0.5,)),))
    assert len(shifted_rows(with_first(single, (0.5,)))) == len(others)


def without_logprobs(credited):
    trajectories = tuple(
        replace(each, rows=tuple(TokenRow(token_ids=row.token_ids, logprobs=None) for row in each.rows))
        for each in credited.group.trajectories
    )
    return replace(credited, group=replace(credited.group, trajectories=trajectories))


def test_tokens_without_log_probabilities_are_refused():
    with pytest.raises(WireError, match="without log-probabilities"):
        shifted_rows(without_logprobs(UNTRAINED))
    (post,) = posts_of(without_logprobs(UNSCORED))
    with pytest.raises(WireError, match="no inference_logprobs"):
        shifted_post(post)


@cases(
    ("column", "change", "message"),
    [
        ("masks", lambda rows: [[0] * len(row) for row in rows], "a mask is the token's id or -100"),
        ("advantages", lambda rows: [row[1:] for row in rows], "advantages must be"),
        ("advantages", lambda rows: [[1e39] * len(row) for row in rows], "too large"),
        ("inference_logprobs", lambda rows: [[float("nan")] * len(row) for row in rows], "must be finite"),
        ("tokens", lambda rows: rows[1:], "not of the same length"),
    ],
    ids=["ones_and_zeros", "short", "too_large", "nan", "a_row_less"],
)
def test_what_a_trainer_would_misread_in_a_post_is_refused(column, change, message):
    (post,) = posts_of(UNSCORED)
    with pytest.raises(WireError, match=message):
        shifted_post(post | {column: change(post[column])})
