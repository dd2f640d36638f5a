"""Rows as next-token losses take them, from a group and from a post of it."""

from dataclasses import replace

import orjson
import pytest

from environments.lab.probe.canaries import CANARIES, GROUP_SIZE
from environments.trainers.completion_columns import shifted_post, shifted_rows
from environments.trajectory import IGNORED, TokenRow
from environments.wire.credited_rows import credited_rows
from environments.wire.payloads import Shape, pack, post_text
from tests.environments.wire.forked_groups import forked_group, with_credit
from tests.tables import cases
from tools.errors import WireError

GROUPS = {name: make() for name, make in CANARIES.items()}
UNTRAINED = with_credit(
    forked_group([[[5, 2], [9]], [[4]]], [[0.5, None, 1.0], [2.0]], untrained=frozenset({(0, 0), (0, 2)}))
)
every_group = pytest.mark.parametrize(
    "credited", [*GROUPS.values(), UNTRAINED], ids=[*GROUPS, "untrained turns"]
)


def posts_of(credited, view="token_advantages"):
    parts = pack(credited, Shape(group_size=GROUP_SIZE, view=view)).parts
    return [orjson.loads(post_text(part.body)) for part in parts]


@every_group
def test_what_stands_at_an_index_is_about_the_token_after_it(credited):
    whole = [row for row in credited_rows(credited) if any(label != IGNORED for label in row.mask)]
    for shifted, row in zip(shifted_rows(credited), whole, strict=True):
        assert shifted.input_ids == row.tokens[:-1]
        assert shifted.target_ids == row.tokens[1:]
        assert shifted.mask == [int(label != IGNORED) for label in row.mask[1:]]
        assert shifted.advantages == row.advantages[1:]


def test_rows_in_which_nothing_is_trained_are_left_out():
    assert len(list(credited_rows(UNTRAINED))) == 3
    assert len(shifted_rows(UNTRAINED)) == 2


@every_group
def test_posts_give_the_same_rows_as_the_group(credited):
    from_posts = [row for post in posts_of(credited) for row in shifted_post(post)]
    assert from_posts == shifted_rows(credited)


def test_a_row_that_begins_with_a_sampled_token_keeps_its_other_tokens():
    (first, *others) = GROUPS["unequal lengths"].group.trajectories
    spans = [replace(turn.span, start=0 if turn.index == 0 else turn.span.start) for turn in first.turns]
    turns = tuple(replace(turn, span=span) for turn, span in zip(first.turns, spans, strict=True))
    group = replace(GROUPS["unequal lengths"].group, trajectories=(replace(first, turns=turns), *others))
    row, *_ = shifted_rows(replace(GROUPS["unequal lengths"], group=group))
    assert sum(row.mask) == sum(span.end - span.start for span in spans) - 1
    assert len(row.mask) == len(row.advantages) == len(row.logprobs) == len(row.input_ids)


def test_a_row_of_a_single_token_has_no_target():
    first, *others = GROUPS["unequal lengths"].group.trajectories
    turn = replace(first.turns[0], span=replace(first.turns[0].span, start=0, end=1))
    alone = replace(first, turns=(turn,), rows=(TokenRow(token_ids=(7,), logprobs=(-0.5,)),))
    group = replace(GROUPS["unequal lengths"].group, trajectories=(alone, *others))
    credited = replace(
        GROUPS["unequal lengths"], group=group, advantages=((0.5,), *GROUPS["unequal lengths"].advantages[1:])
    )
    assert len(shifted_rows(credited)) == len(others)


def without_logprobs(credited):
    trajectories = tuple(
        replace(each, rows=tuple(TokenRow(token_ids=row.token_ids, logprobs=None) for row in each.rows))
        for each in credited.group.trajectories
    )
    return replace(credited, group=replace(credited.group, trajectories=trajectories))


def test_tokens_without_log_probabilities_are_refused():
    with pytest.raises(WireError, match="without log-probabilities"):
        shifted_rows(without_logprobs(UNTRAINED))
    (post,) = posts_of(without_logprobs(GROUPS["unscored turns"]))
    with pytest.raises(WireError, match="no inference_logprobs"):
        shifted_post(post)


def test_posts_of_scores_are_refused_with_the_view_to_use():
    with pytest.raises(WireError, match=r"no advantages; serve with --env\.credit_view token_advantages"):
        shifted_post(posts_of(UNTRAINED, "turn_rows")[0])


@cases(
    ("column", "change", "told"),
    [
        ("masks", lambda rows: [[0] * len(row) for row in rows], "a mask is the token's id or -100"),
        ("advantages", lambda rows: [row[1:] for row in rows], "advantages must be"),
        ("advantages", lambda rows: [[1e39] * len(row) for row in rows], "too large"),
        ("inference_logprobs", lambda rows: [[float("nan")] * len(row) for row in rows], "must be finite"),
        ("tokens", lambda rows: rows[1:], "not of the same length"),
    ],
    ids=["ones_and_zeros", "short", "too_large", "nan", "a_row_less"],
)
def test_what_a_trainer_would_misread_in_a_post_is_refused(column, change, told):
    (post,) = posts_of(GROUPS["unscored turns"])
    with pytest.raises(WireError, match=told):
        shifted_post(post | {column: change(post[column])})


def test_a_post_without_group_overrides_is_read_as_labels():
    (post,) = posts_of(GROUPS["unscored turns"])
    assert shifted_post(post | {"group_overrides": None}) == shifted_post(post)


def test_a_group_with_an_advantage_too_large_has_no_rows_and_is_warned_of(caplog):
    huge = tuple(tuple(value * 1e60 for value in row) for row in GROUPS["unscored turns"].advantages)
    assert shifted_rows(replace(GROUPS["unscored turns"], advantages=huge)) == []
    assert "too large for the float32 of a trainer" in caplog.text
