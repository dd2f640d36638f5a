"""Turn-level GAE: a critic's values that do not match the group are refused."""

import pytest

from environments.credit import turn_gae
from environments.testing import group_of
from tools.errors import CreditError

GROUP = group_of([[1.0], [0.0, 2.0]])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([[0.0]], "values for 1 trajectories; the group has 2"),
        ([[0.0], [0.0]], "1 values for the 2 turns of trajectory 1"),
        ([[0.0], [0.0, float("nan")]], "value of trajectory 1, turn 2 is nan"),
    ],
)
def test_values_that_do_not_match_are_refused(values, message):
    with pytest.raises(CreditError, match=message):
        turn_gae(GROUP, values=values)


def test_a_perfect_critic_leaves_no_advantage():
    assert turn_gae(GROUP, values=[[1.0], [2.0, 2.0]], lam=0.5) == [[0.0], [0.0, 0.0]]


def test_without_a_critic_it_is_the_return():
    assert turn_gae(GROUP) == [[1.0], [2.0, 2.0]]
