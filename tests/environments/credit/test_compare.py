"""How credit moved: ranks, signs and means, on numbers small enough to check by eye."""

import pytest

from environments.credit import credit_change
from environments.credit.ledger import rank_correlation
from tools.errors import CreditError


def test_ranks_correlate_and_ties_share_their_mean_rank():
    assert rank_correlation([1.0, 2.0, 9.0], [-5.0, 0.0, 0.5]) == pytest.approx(1.0)
    assert rank_correlation([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]) == pytest.approx(-1.0)
    # ranks 1.5 1.5 3 against 1 2 3: sum of products 1.5, spreads 1.5 and 2
    assert rank_correlation([0.0, 0.0, 1.0], [0.0, 1.0, 2.0]) == pytest.approx(1.5 / 3**0.5)
    assert rank_correlation([1.0, 1.0], [1.0, 2.0]) is rank_correlation([], []) is None


def test_the_mean_moves_per_turn_index_and_turns_that_changed_value_or_sign_are_counted():
    change = credit_change([([[1.0, 2.0], [3.0]], [[0.0, 2.0], [1.0]])])
    assert [(row.turn, row.count, row.mean_change) for row in change.by_turn] == [(0, 2, -1.5), (1, 1, 0.0)]

    change = credit_change([([[1.0, 2.0, 0.0]], [[-1.0, 2.0, 3.0]])])

    assert (change.groups, change.turns, change.changed, change.flipped) == (1, 3, 2, 1)


def test_correlations_are_averaged_over_the_groups_that_have_one():
    same, opposite, flat = [[1.0, 2.0]], [[2.0, 1.0]], [[1.0, 1.0]]

    change = credit_change([(same, same), (same, opposite), (flat, same)])

    assert change.rank_correlation == pytest.approx(0.0)
    assert credit_change([]).rank_correlation is None


def test_sides_with_different_turns_are_refused():
    with pytest.raises(CreditError, match="group 0 has different turns before and after"):
        credit_change([([[1.0]], [[1.0, 2.0]])])
