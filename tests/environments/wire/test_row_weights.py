"""What each row of a forked trajectory weighs in a trainer's loss: what the table in docs/serving.md says."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson
import pytest

from environments.wire.payloads import Shape, pack, post_text
from environments.wire.views import VIEWS
from tests.environments.wire.forked_groups import advantage_of_token, forked_group, with_credit
from tests.environments.wire.trainer_losses import (
    CONSTANT,
    Batch,
    reading_advantages,
    reading_binary_masks,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """What a cell of the table is made of, for one trained token of a batch."""

    a: float
    """Its turn's advantage."""
    of_row: int
    """Trained tokens of its row."""
    of_batch: int
    rows: int
    """Of the batch, padding included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of the table: what is sent, what is read of it, and a token's weight per aggregation."""

    view: str
    weighting: str = "once"
    divisor: int | str = DIVISOR
    reads: Callable[[Sequence[Mapping[str, Any]]], Batch] = reading_scores
    cells: Sequence[Callable[[Token], float] | None]
    """`None`: only that it is not exact."""
    exact: Sequence[bool]


AGGREGATIONS = (token_mean, seq_mean_token_mean, seq_mean_token_sum, seq_mean_token_sum_norm)
BY_TOKEN = (
    lambda token: token.a / token.of_batch,
    lambda token: token.a / token.rows / token.of_row,
    lambda token: token.a / token.rows,
    lambda token: token.a / CONSTANT,
)
BY_TURN = (
    lambda token: token.a * token.of_row / DIVISOR / token.of_batch,
    lambda token: token.a / DIVISOR / token.rows,
    lambda token: token.a * token.of_row / DIVISOR / token.rows,
    lambda token: token.a * token.of_row / DIVISOR / CONSTANT,
)
TABLE = {
    "advantages": Line(
        view="token_advantages", reads=reading_advantages, cells=BY_TOKEN, exact=(True, False, True, True)
    ),
    "binary_masks": Line(
        view="binary_masks", reads=reading_binary_masks, cells=BY_TOKEN, exact=(True, False, True, True)
    ),
    "turn_rows": Line(view="turn_rows", cells=BY_TURN, exact=(False, True, False, False)),
    "turn_rows_own_length": Line(
        view="turn_rows", divisor="own_length", cells=BY_TOKEN, exact=(True, False, True, True)
    ),
    "prefix_rows": Line(
        view="prefix_rows", cells=(None, BY_TURN[1], None, None), exact=(False, True, False, False)
    ),
    "prefix_rows_own_length": Line(
        view="prefix_rows",
        divisor="own_length",
        cells=(BY_TOKEN[0], None, *BY_TOKEN[2:]),
        exact=(True, False, True, True),
    ),
    "prefix_rows_repeated": Line(
        view="prefix_rows", weighting="repeated", cells=(None,) * 4, exact=(False,) * 4
    ),
    "scores_beside_advantages": Line(view="token_advantages", cells=(None,) * 4, exact=(False,) * 4),
}
"""With turn rewards. Without, scores are normalised by the trainer:"""
PLAIN = Line(view="token_advantages", cells=BY_TOKEN, exact=(True, False, True, True))


@pytest.fixture(params=PARTS)
def group(request):
    return PARTS[request.param]


def check_cells(group, line):
    shape = {"divisor": line.divisor, "prefix_weighting": line.weighting}
    batch = line.reads(posts(group, line.view, **shape))
    advantages = advantage_of_token(group)
    row_of = {token: row for row in batch.rows for token in row}
    for aggregation, cell, exact in zip(AGGREGATIONS, line.cells, line.exact, strict=True):
        weights = aggregation(batch)
        assert (scale_to(weights, advantages) is not None) == exact, aggregation.__name__
        for token, row in row_of.items() if cell else ():
            parts = Token(a=advantages[token], of_row=len(row), of_batch=batch.tokens, rows=len(batch.rows))
            assert weights[token] == pytest.approx(cell(parts), abs=1e-12), aggregation.__name__


@pytest.mark.parametrize("line", TABLE)
def test_a_token_weighs_what_the_table_says(group, line):
    check_cells(group, TABLE[line])


def test_a_token_of_plain_data_weighs_what_the_table_says():
    check_cells(SCALAR, PLAIN)


def test_padding_counts_among_the_rows_of_a_batch_and_not_in_a_sum_over_a_constant():
    group = PARTS["turns"]
    few, many = (reading_advantages(posts(group, "token_advantages", size=size)) for size in (3, 7))
    assert len(few.rows) < len(many.rows)
    assert seq_mean_token_sum_norm(few) == pytest.approx(seq_mean_token_sum_norm(many))
    assert seq_mean_token_sum(few) != pytest.approx(seq_mean_token_sum(many))


def test_with_a_mean_over_each_rows_tokens_a_trajectory_of_three_rows_weighs_three_times_a_whole_one():
    group = with_credit(forked_group([[[4], [4], [4]], [[4]]], outcomes=[1.0, 0.0]), "grpo")
    weights = seq_mean_token_mean(reading_scores(posts(group, "token_advantages", size=2)))
    first = [weight for weight in weights.values() if weight > 0]
    second = [weight for weight in weights.values() if weight < 0]
    assert sum(first) == pytest.approx(-3 * sum(second))


ROW_BY_ROW = ["turn_rows", "prefix_rows"]


@pytest.mark.parametrize("view", ROW_BY_ROW)
def test_row_by_row_a_forked_trajectory_weighs_what_it_weighs_whole(view):
    """The same turns in one row and in three: the same tokens' weights."""
    advantages = ((0.5, -0.25, 1.0),)
    whole = replace(with_credit(forked_group([[[2, 3, 4]]], [[1.0, 0.0, 2.0]])), advantages=advantages)
    forked = replace(with_credit(forked_group([[[2], [3], [4]]], [[1.0, 0.0, 2.0]])), advantages=advantages)
    one, three = (seq_mean_token_mean(reading_scores(posts(each, view, size=1))) for each in (whole, forked))
    assert one == pytest.approx(three)


@pytest.mark.parametrize("view", VIEWS)
def test_rows_of_one_trajectory_carry_the_advantages_of_its_turns(group, view):
    advantages = advantage_of_token(group)
    for post in posts(group, view):
        for tokens, override in zip(post["tokens"], post["overrides"], strict=True):
            for (start, end), advantage in zip(
                override.get("turn_spans", ()), override.get("turn_advantages", ()), strict=True
            ):
                assert all(advantages[token] == advantage for token in tokens[start:end])
