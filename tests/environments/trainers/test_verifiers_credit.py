"""Advantages stamped on verifiers' own traces; needs verifiers."""

import importlib
import os

import pytest

from environments.trainers.verifiers_credit import stamp_advantages
from tests.environments.trainers.groups import every_group
from tools.errors import CreditError

if not os.environ.get("TURNWISE_REQUIRE_VERIFIERS"):
    pytest.importorskip("verifiers", reason="needs verifiers")
trace = importlib.import_module("verifiers.v1.trace")
graph = importlib.import_module("verifiers.v1.graph")
task = importlib.import_module("verifiers.v1.task")
configs = importlib.import_module("verifiers.v1.configs.agent")
adapter = importlib.import_module("environments.trainers.verifiers_traces")


def rolled_out(turns, *, outcome=None, rewards=None, ok=True):
    """A trace as verifiers' rollouts leave it, of two sampled tokens a turn."""
    made = trace.WireTrace(
        task=trace.TraceTask(type="t", data=task.WireTaskData()),
        agent=trace.AgentInfo(config=configs.WireAgentConfig()),
        ok=ok,
    )
    for _ in range(turns):
        for role, mask in (("user", [False]), ("assistant", [False, True, True])):
            node = graph.MessageNode(
                parent=len(made.nodes) - 1 if made.nodes else None,
                message={"role": role, "content": "said"},
                sampled=role == "assistant",
                token_ids=[7] * len(mask),
                mask=mask,
                logprobs=[-1.0] * sum(mask),
            )
            made.nodes.append(node)
    if outcome is not None:
        made.record_reward("correct", outcome)
    if rewards is not None:
        made.info["turn_rewards"] = rewards
    return made


def test_each_sampled_node_gets_its_turns_advantage_computed_by_hand():
    group = [
        rolled_out(2, rewards=[1.0, 0.5], outcome=0.0),
        rolled_out(2, rewards=[0.0, 2.0], outcome=1.0),
        rolled_out(1, rewards=[0.25], outcome=0.0),
    ]
    stamp_advantages(group)
    assert [[node.advantages for node in each.nodes if node.sampled] for each in group] == [
        [[-0.125] * 2, [-2.5] * 2],
        [[2.125] * 2, [2.5] * 2],
        [[-2.0] * 2],
    ]
    assert all(node.advantages is None for each in group for node in each.nodes if not node.sampled)
    assert group[0].branches[0].advantages == [0.0, 0.0, -0.125, -0.125, 0.0, 0.0, -2.5, -2.5]


def test_a_rollout_with_an_error_is_compared_with_nothing_and_gets_no_advantage():
    group = [rolled_out(1, outcome=1.0), rolled_out(1, outcome=0.0), rolled_out(1, ok=False)]
    stamp_advantages(group)
    assert group[0].branches[0].advantages[-1] == 1.0
    assert group[2].branches[0].advantages is None


def test_other_turn_rewards_than_sampled_nodes_are_refused():
    with pytest.raises(CreditError, match=r"has 2 sampled nodes and the turn_rewards \[1\.0\]"):
        stamp_advantages([rolled_out(2, rewards=[1.0])])
    none = rolled_out(2)
    none.info["turn_rewards"] = None
    with pytest.raises(CreditError, match="has 2 sampled nodes and the turn_rewards None"):
        stamp_advantages([none])


def restamped(credited, **params):
    """The advantages of our own traces, and those stamped again after they were taken off and sent."""
    ours = adapter.traces(credited)
    sent = [trace.WireTrace.model_validate(each.model_dump(mode="python")) for each in ours]
    for each in sent:
        for node in each.nodes:
            node.advantages = None
    stamp_advantages(sent, **params)
    return [[[node.advantages for node in each.nodes] for each in group] for group in (ours, sent)]


@every_group
def test_our_own_traces_stamped_again_are_equal(credited):
    ours, again = restamped(credited)
    assert again == ours
