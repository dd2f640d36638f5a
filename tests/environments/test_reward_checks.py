"""What an environment's code gave as metrics; rewards are in `test_turn_level_reward.py`, hook by hook."""

import math
from fractions import Fraction

import pytest

from environments.rewards.reward_checks import check_metrics
from environments.rewards.reward_context import RolloutContext
from tools.errors import RewardError


def context():
    return RolloutContext(env="toy", item_id="item-7", sandbox=None, fresh_sandbox=None)


@pytest.mark.parametrize("bad", [math.nan, math.inf, "0.5", None])
def test_a_metric_that_is_no_finite_number_is_named(bad):
    ctx = context()
    ctx.metrics["held"] = bad
    with pytest.raises(RewardError, match="item 'item-7': metric 'held': a metric is a finite number"):
        check_metrics(ctx)


def test_a_metric_of_another_number_type_is_kept_as_a_float():
    ctx = context()
    ctx.metrics["held"] = Fraction(1, 4)
    assert repr(check_metrics(ctx)) == "{'held': 0.25}"
