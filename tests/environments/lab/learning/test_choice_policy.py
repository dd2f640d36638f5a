"""Which decisions belong to which rollout: a wrong one would be credit for what was never chosen."""

import asyncio

import pytest

from environments.lab.learning.choice_policy import ChoicePolicy, Decision, Learner
from environments.policy.rendering.chatml import ChatMLRenderer
from environments.policy.scripted import playing
from environments.stations_env.env import StationsConfig, StationsEnv
from environments.testing import group_of
from tools.errors import WireError

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


class Musician:
    """A user's policy, with an attribute that has nothing to do with scripts."""

    name = "musician"

    def playing_by_script(self, tune, instrument, skill):
        return f"{tune} on {instrument}"

    async def complete(self, request):
        raise NotImplementedError


def test_a_policy_plays_by_a_script_only_if_it_is_a_subclass_that_says_so():
    policy = Musician()
    assert playing(policy, None, None, 1.0) is policy
