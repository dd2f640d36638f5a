"""The gradient that the small policy takes, against finite differences of its own log-probabilities."""

import math
from itertools import pairwise

import numpy as np
import pytest

from environments.lab.learning.choice_policy import ChoicePolicy
from environments.lab.learning.learner import Learner, SampledTurn
from environments.lab.learning.networks import MLP, Decision, Table, probabilities
from environments.policy.rendering.chatml import ChatMLRenderer
from tools.errors import WireError

CHOICES = ((1, 2, 3), (1, 2, 4), (1, 5), (6,))
DECISION = Decision(state="a sign", choices=CHOICES)


def networks():
    rng = np.random.default_rng(0)
    for network in (Table(), MLP(lambda text: list(text.encode()), vocabulary=128, seed=1)):
        network.logits(DECISION)
        for name in network.parameters:
            network.parameters[name] = rng.normal(0, 0.5, network.parameters[name].shape)
        yield network


def token_logprobs(network, tokens):
    chances = probabilities(network.logits(DECISION))
    mass = [
        sum(chance for ids, chance in zip(CHOICES, chances, strict=True) if ids[:end] == tokens[:end])
        for end in range(len(tokens) + 1)
    ]
    return [math.log(after / before) for before, after in pairwise(mass)]


@pytest.mark.parametrize("network", list(networks()), ids=["table", "mlp"])
@pytest.mark.parametrize("tokens", [(1, 2, 4), (6,), (1, 2)], ids=["whole", "short", "cut"])
def test_the_step_is_the_gradient_of_advantages_times_log_probabilities_of_tokens(network, tokens):
    advantages = [0.5, -1.0, 2.0][: len(tokens)]
    policy = ChoicePolicy(network, ChatMLRenderer.embedded())
    turn = SampledTurn(
        decision=DECISION, tokens=tokens, logprobs=token_logprobs(network, tokens), advantages=advantages
    )
    taken = network.gradient([DECISION], [Learner(policy, 0.1)._of_logits(turn)])
    for name, values in network.parameters.items():
        used = np.argwhere(taken[name])[:20]
        for place in map(tuple, used):
            kept = values[place]
            ends = []
            for change in (1e-6, -1e-6):
                values[place] = kept + change
                ends.append(float(np.dot(advantages, token_logprobs(network, tokens))))
            values[place] = kept
            assert taken[name][place] == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=1e-6)
        assert len(used)


def test_a_turn_that_another_policy_has_sampled_is_refused():
    policy = ChoicePolicy(Table(), ChatMLRenderer.embedded())
    turn = SampledTurn(decision=DECISION, tokens=(6,), logprobs=[-0.1], advantages=[1.0])
    with pytest.raises(WireError, match="by the policy that sampled it"):
        Learner(policy, 0.1).learn([turn], 1)
