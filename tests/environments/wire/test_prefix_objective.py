"""What prefixes do to the objective, as facts: expected gradients over every session of a chat."""

import numpy as np
import pytest

from tests.benchmarks.credit_bias import cosine
from tests.benchmarks.prefix_objective import (
    ARMS,
    LOGITS,
    Chat,
    expected_gradient,
    weights_on_the_wire,
)

TURN_RETURN, WEIGHTED, REPEATED, ALL_TOKENS, LAST_ONLY = ARMS.values()


@pytest.fixture(scope="module")
def chat():
    return Chat(4)


@pytest.fixture(scope="module")
def logits():
    return np.random.default_rng(0).normal(scale=0.7, size=LOGITS)


def value(chat, logits, of_sessions):
    return float(chat.probabilities(logits) @ of_sessions)


def slopes(chat, logits, of_sessions):
    step = 1e-6
    return [
        (value(chat, logits + step * axis, of_sessions) - value(chat, logits - step * axis, of_sessions))
        / (2 * step)
        for axis in np.eye(LOGITS)
    ]


@pytest.mark.parametrize("arm", [TURN_RETURN, WEIGHTED], ids=["turn_rows", "weighted_prefixes"])
def test_weighted_prefixes_follow_the_true_gradient_as_turn_rows_do(chat, logits, arm):
    true = slopes(chat, logits, chat.rewards.sum(axis=1))
    assert expected_gradient(chat, arm, logits, 4) == pytest.approx(true, abs=1e-8)


def test_weighted_prefixes_weigh_each_turn_of_a_group_as_turn_rows_do(chat):
    group = chat.group([0, 5, 17, len(chat.sessions) - 1])
    advantages = TURN_RETURN.weigh(group)
    assert len({len(each.turns) for each in group.trajectories}) > 2
    one, other = (weights_on_the_wire(group, advantages, arm) for arm in (TURN_RETURN, WEIGHTED))
    for rows in zip(one, other, advantages, strict=True):
        assert rows[0] == pytest.approx(rows[2], abs=1e-12)
        assert rows[1] == pytest.approx(rows[2], abs=1e-12)


@pytest.mark.parametrize(
    "arm", [REPEATED, ALL_TOKENS, LAST_ONLY], ids=["repeated", "all_tokens", "last_only"]
)
def test_no_other_prefixes_follow_the_true_gradient(chat, logits, arm):
    true = np.array(slopes(chat, logits, chat.rewards.sum(axis=1)))
    assert cosine(expected_gradient(chat, arm, logits, 4), true) < 0.999
