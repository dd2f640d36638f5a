"""The policy that learns: its gradient, and which decisions belong to which rollout."""

import asyncio
import math
from itertools import pairwise

import numpy as np
import pytest

from environments.policy.rendering.chatml import ChatMLRenderer
from environments.shipped.stations.env import StationsConfig, StationsEnv
from environments.testing import group_of
from tests.tables import cases
from tools.errors import WireError
from turnwise.lab.learning.choice_policy import ChoicePolicy, Decision, Learner, SampledTurn

CONFIG = StationsConfig(task="independent", max_items=4, group_size=2)


def a_policy():
    return ChoicePolicy(ChatMLRenderer.embedded())


async def test_two_groups_of_one_seed_side_by_side_have_each_its_own_decisions():
    policy = a_policy()
    async with StationsEnv(CONFIG, policy=policy) as env:
        task = env.tasks()[0]
        groups = await asyncio.gather(env.run_group(task), env.run_group(task))
    alone = a_policy()
    async with StationsEnv(CONFIG, policy=alone) as env:
        one = await env.run_group(task)
    turns = Learner(policy, 0.1).sampled_turns(groups)
    expected = Learner(alone, 0.1).sampled_turns([one])
    assert [turn.decision for turn in turns] == [turn.decision for turn in expected * 2]


def test_rollouts_of_one_seed_that_went_different_ways_are_refused():
    policy = a_policy()
    for state in "ab":
        policy.begun(0, [Decision(state=state, choices=((1,), (2,)))])
    with pytest.raises(WireError, match="two rollouts of a batch have the seed 0 and went different ways"):
        policy.decisions_of(group_of([[1.0]]).trajectories[0])


def test_a_sibling_that_broke_early_leaves_nothing_to_confuse():
    policy = a_policy()
    decisions = [Decision(state=state, choices=((1,),)) for state in "ab"]
    policy.begun(0, [Decision(state="of the first try", choices=((1,),))])
    policy.begun(0, [*decisions])
    assert list(policy.decisions_of(group_of([[1.0, 1.0]]).trajectories[0])) == decisions


async def test_a_batch_that_began_before_a_step_is_refused_after_it():
    policy = a_policy()
    learner = Learner(policy, 0.1)
    async with StationsEnv(CONFIG, policy=policy) as env:
        first, second = [await env.run_group(task) for task in env.tasks()[:2]]
        learner.learn(learner.sampled_turns([first]), 2)
        with pytest.raises(WireError, match="learn once from each batch"):
            learner.sampled_turns([second])


# The gradient, against finite differences of its own log-probabilities.

CHOICES = ((1, 2, 3), (1, 2, 4), (1, 5), (6,))
DECISION = Decision(state="a sign", choices=CHOICES)


def policy_of():
    policy = ChoicePolicy(ChatMLRenderer.embedded())
    policy.table.probabilities(DECISION)
    policy.table.values = np.random.default_rng(0).normal(0, 0.5, len(CHOICES))
    return policy


def token_logprobs(table, tokens):
    chances = table.probabilities(DECISION)
    mass = [
        sum(chance for ids, chance in zip(CHOICES, chances, strict=True) if ids[:end] == tokens[:end])
        for end in range(len(tokens) + 1)
    ]
    return [math.log(after / before) for before, after in pairwise(mass)]


@cases("tokens", [(1, 2, 4), (6,), (1, 2)], ids=["whole", "short", "cut"])
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
