"""The gradient that the small policy takes, against finite differences of its own log-probabilities."""

import math
from itertools import pairwise

import numpy as np
import pytest

from environments.lab.learning.choice_policy import ChoicePolicy, Decision, Learner, SampledTurn
from environments.policy.rendering.chatml import ChatMLRenderer
from tools.errors import WireError

CHOICES = ((1, 2, 3), (1, 2, 4), (1, 5), (6,))
DECISION = Decision(state="a sign", choices=CHOICES)


def policy_of():
    policy = ChoicePolicy(ChatMLRenderer.embedded())
    policy.table.logits(DECISION)
    policy.table.values = np.random.default_rng(0).normal(0, 0.5, len(CHOICES))
    return policy


def token_logprobs(table, tokens):
    chances = table.probabilities(DECISION)
    mass = [
        sum(chance for ids, chance in zip(CHOICES, chances, strict=True) if ids[:end] == tokens[:end])
        for end in range(len(tokens) + 1)
    ]
    return [math.log(after / before) for before, after in pairwise(mass)]


@pytest.mark.parametrize("tokens", [(1, 2, 4), (6,), (1, 2)], ids=["whole", "short", "cut"])
def test_the_step_is_the_gradient_of_advantages_times_log_probabilities_of_tokens(tokens):
    advantages = [0.5, -1.0, 2.0][: len(tokens)]
    policy = policy_of()
    table = policy.table
    turn = SampledTurn(
        decision=DECISION, tokens=tokens, logprobs=token_logprobs(table, tokens), advantages=advantages
    )
    taken = table.gradient([DECISION], [Learner(policy, 0.1)._of_logits(turn)])
    assert taken.any()
    for index, kept in enumerate(table.values.copy()):
        ends = []
        for change in (1e-6, -1e-6):
            table.values[index] = kept + change
            ends.append(float(np.dot(advantages, token_logprobs(table, tokens))))
        table.values[index] = kept
        assert taken[index] == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=1e-6)


def test_a_turn_that_another_policy_has_sampled_is_refused():
    policy = ChoicePolicy(ChatMLRenderer.embedded())
    turn = SampledTurn(decision=DECISION, tokens=(6,), logprobs=[-0.1], advantages=[1.0])
    with pytest.raises(WireError, match="by the policy that sampled it"):
        Learner(policy, 0.1).learn([turn], 1)
