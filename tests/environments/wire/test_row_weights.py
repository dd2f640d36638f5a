"""What each row of a forked trajectory weighs in a trainer's loss: what the table in docs/serving.md says."""

from dataclasses import replace
from itertools import chain

import orjson
import pytest

from environments.credit import estimate
from environments.trajectory import Span, TokenRow
from environments.wire.payloads import Shape, pack, post_text
from environments.wire.views import VIEWS
from tests.environments.wire.forked_groups import advantage_of_token, forked_group, with_credit
from tests.environments.wire.trainer_losses import (
    CONSTANT,
    reading_advantages,
    reading_scores,
    scale_to,
    seq_mean_token_mean,
    seq_mean_token_sum,
    seq_mean_token_sum_norm,
    token_mean,
)

DIVISOR = 32
LENGTHS = [[[5, 2], [9], [1, 1, 3]], [[4]], [[2, 7], [6, 2]]]
"""Turns of 1 to 9 tokens; three rows, one and two."""
REWARDS = [[0.5, None, 1.0, 0.0, 0.25, -1.0], [2.0], [0.0, 1.0, 0.5, 0.125]]
PARTS = {
    "turns": with_credit(forked_group(LENGTHS, REWARDS)),
    # Turns that are not trained, and one without a token.
    "left_out": with_credit(
        forked_group(
            [[[5, 2], [0, 9], [1, 1, 3]], [[4]], [[2, 7], [6, 2]]],
            [[0.5, None, 0.75, 1.0, 0.0, 0.25, -1.0], [2.0], [0.0, 1.0, 0.5, 0.125]],
            untrained=frozenset({(0, 0), (0, 5), (2, 3)}),
        )
    ),
    "summary": with_credit(
        forked_group(
            LENGTHS,
            [[0.5, None, 1.0, 0.0, 0.25, -1.0], [2.0], [0.0, None, 0.5, 0.125]],
            summaries=frozenset({(0, 1), (2, 1)}),
        )
    ),
}
"""With turn rewards."""
SCALAR = with_credit(forked_group(LENGTHS, outcomes=[1.0, 0.0, 0.25]), "grpo", ddof=0, eps=0.0)
"""Without, credited as a trainer does that normalises scores itself."""


def posts(group, view, *, size=4, **shape):
    """What leaves for a trainer: a sibling is missing, so there is padding, too."""
    package = pack(group, Shape(view=view, group_size=size, **({"divisor": DIVISOR} | shape)))
    return [orjson.loads(post_text(part.body)) for part in package.parts]


def rows(sent):
    return sum(len(post["tokens"]) for post in sent)


@pytest.fixture(params=PARTS)
def group(request):
    return PARTS[request.param]


# --- token_advantages ------------------------------------------------------------------------------


def test_read_by_token_a_mean_over_the_batchs_tokens_weighs_each_with_its_advantage(group):
    batch = reading_advantages(posts(group, "token_advantages"))
    assert scale_to(token_mean(batch), advantage_of_token(group)) == pytest.approx(1 / batch.tokens)


def test_read_by_token_a_sum_over_a_constant_is_exact_whatever_the_padding(group):
    for size in (3, 4, 7):
        batch = reading_advantages(posts(group, "token_advantages", size=size))
        scale = scale_to(seq_mean_token_sum_norm(batch), advantage_of_token(group))
        assert scale == pytest.approx(1 / CONSTANT)


def test_read_by_token_a_mean_over_rows_of_their_sums_is_scaled_by_all_rows_and_so_by_padding(group):
    sent = posts(group, "token_advantages")
    scale = scale_to(seq_mean_token_sum(reading_advantages(sent)), advantage_of_token(group))
    assert scale == pytest.approx(1 / rows(sent))


def test_read_by_token_a_mean_over_each_rows_tokens_weighs_a_token_one_over_its_rows_length(group):
    sent = posts(group, "token_advantages")
    weights, advantages = seq_mean_token_mean(reading_advantages(sent)), advantage_of_token(group)
    assert scale_to(weights, advantages) is None
    for mask in chain.from_iterable(post["masks"] for post in sent):
        labels = [label for label in mask if label != -100]
        for label in labels:
            assert weights[label] == pytest.approx(advantages[label] / len(labels) / rows(sent))


def test_a_reader_of_scores_gets_no_turn_credit_from_token_advantages():
    group = PARTS["turns"]
    assert (
        scale_to(
            seq_mean_token_mean(reading_scores(posts(group, "token_advantages"))), advantage_of_token(group)
        )
        is None
    )


# --- plain scores ----------------------------------------------------------------------------------


def test_plain_scores_of_forked_trajectories_are_normalised_as_among_whole_ones():
    batch = reading_scores(posts(SCALAR, "token_advantages"))
    advantages = advantage_of_token(SCALAR)
    for values in batch.rows:
        assert list(values.values()) == pytest.approx([advantages[token] for token in values])


def test_plain_scores_are_exact_with_a_mean_over_the_batchs_tokens_or_a_constant():
    batch, advantages = reading_scores(posts(SCALAR, "token_advantages")), advantage_of_token(SCALAR)
    for weights in (token_mean(batch), seq_mean_token_sum_norm(batch)):
        for token, advantage in advantages.items():
            assert weights[token] / advantage == pytest.approx(
                next(iter(weights.values())) / next(iter(advantages.values()))
            )


def test_with_a_mean_over_each_rows_tokens_a_trajectory_of_three_rows_weighs_three_times_a_whole_one():
    group = with_credit(forked_group([[[4], [4], [4]], [[4]]], outcomes=[1.0, 0.0]), "grpo")
    weights = seq_mean_token_mean(reading_scores(posts(group, "token_advantages", size=2)))
    first = [weight for weight in weights.values() if weight > 0]
    second = [weight for weight in weights.values() if weight < 0]
    assert sum(first) == pytest.approx(-3 * sum(second))


# --- turn_rows, and prefix_rows counted once -------------------------------------------------------

ROW_BY_ROW = ["turn_rows", "prefix_rows"]


@pytest.mark.parametrize("view", ROW_BY_ROW)
def test_row_by_row_a_mean_over_each_rows_tokens_is_exact(group, view):
    sent = posts(group, view)
    weights = seq_mean_token_mean(reading_scores(sent))
    assert scale_to(weights, advantage_of_token(group)) == pytest.approx(1 / DIVISOR / rows(sent))


@pytest.mark.parametrize("view", ROW_BY_ROW)
@pytest.mark.parametrize(
    "aggregation", [token_mean, seq_mean_token_sum, seq_mean_token_sum_norm], ids=lambda each: each.__name__
)
def test_row_by_row_any_other_sum_is_exact_with_own_length_alone(group, view, aggregation):
    advantages = advantage_of_token(group)
    unscaled = aggregation(reading_scores(posts(group, view, divisor="own_length")))
    assert scale_to(unscaled, advantages) is not None
    assert scale_to(aggregation(reading_scores(posts(group, view))), advantages) is None
    mean = seq_mean_token_mean(reading_scores(posts(group, view, divisor="own_length")))
    assert scale_to(mean, advantages) is None


@pytest.mark.parametrize("view", ROW_BY_ROW)
def test_row_by_row_a_forked_trajectory_weighs_what_it_weighs_whole(view):
    """The same turns in one row and in three: the same tokens' weights."""
    advantages = ((0.5, -0.25, 1.0),)
    whole = replace(with_credit(forked_group([[[2, 3, 4]]], [[1.0, 0.0, 2.0]])), advantages=advantages)
    forked = replace(with_credit(forked_group([[[2], [3], [4]]], [[1.0, 0.0, 2.0]])), advantages=advantages)
    one, three = (seq_mean_token_mean(reading_scores(posts(each, view, size=1))) for each in (whole, forked))
    assert one == pytest.approx(three)


# --- prefix_rows repeated --------------------------------------------------------------------------


def test_prefixes_repeated_give_a_turn_its_own_and_all_later_advantages_of_its_row():
    advantages = ((0.5, -0.25, 1.0),)
    group = replace(with_credit(forked_group([[[2, 3, 4]]], [[1.0, 0.0, 2.0]])), advantages=advantages)
    sent = posts(group, "prefix_rows", prefix_weighting="repeated")
    weights = seq_mean_token_mean(reading_scores(sent))
    expected = [1.25] * 2 + [0.75] * 3 + [1.0] * 4
    assert [weight * DIVISOR * 3 for weight in weights.values()] == pytest.approx(expected)


def test_every_prefix_row_says_how_it_is_weighted():
    for weighting in ("once", "repeated"):
        sent = posts(PARTS["turns"], "prefix_rows", prefix_weighting=weighting)
        assert {override["prefix_weighting"] for post in sent for override in post["overrides"]} == {
            weighting
        }


# --- the advantage itself --------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ["turn_return", "grpo", "rloo", "gigpo"])
def test_an_advantage_is_computed_over_trajectories_and_shared_by_their_rows(estimator):
    forked = forked_group(LENGTHS, REWARDS)
    whole = [[list(chain.from_iterable(each))] for each in LENGTHS]
    assert estimate(estimator, forked) == estimate(estimator, forked_group(whole, REWARDS))


@pytest.mark.parametrize("view", VIEWS)
def test_rows_of_one_trajectory_carry_the_advantages_of_its_turns(group, view):
    advantages = advantage_of_token(group)
    for post in posts(group, view):
        for tokens, override in zip(post["tokens"], post["overrides"], strict=True):
            for (start, end), advantage in zip(
                override.get("turn_spans", ()), override.get("turn_advantages", ()), strict=True
            ):
                assert all(advantages[token] == advantage for token in tokens[start:end])


def test_a_row_twice_over_changes_no_siblings_advantage():
    """Rows are what a trajectory is cut into: one more of them is no more of a sibling."""
    group = forked_group([[[2], [3]], [[2]], [[4]]], outcomes=[1.0, 0.0, 0.5])
    first = group.trajectories[0]
    more = replace(
        first,
        rows=(*first.rows, TokenRow(token_ids=(1, 2), logprobs=(1.0, 1.0))),
        turns=(*first.turns, replace(first.turns[-1], index=2, span=Span(row=2, start=2, end=2))),
    )
    longer = replace(group, trajectories=(more, *group.trajectories[1:]))
    assert [row[0] for row in estimate("grpo", group)] == [row[0] for row in estimate("grpo", longer)]
