"""Environments of verifiers, played by its own agent: its rewards, its simulated user, and how it ends."""

import asyncio
import importlib
import json
import os
import sys
from pathlib import Path
from typing import ClassVar

import pytest

from environments.config import AgentEnvConfig
from environments.policy.scripted import Choice, call, say
from tests.environments.recorded.examples import example
from tests.environments.recorded.replaying import replaying

if not os.environ.get("TURNWISE_REQUIRE_AGENTS"):
    pytest.importorskip("verifiers", reason="needs verifiers: see requirements/agents.in")
vf = importlib.import_module("verifiers.v1")
HERE = Path(__file__).resolve().parent
Verifiers = example("verifiers_env").Verifiers
"""Takes any environment of verifiers."""


def agent(harness, **fields):
    """One of verifiers' agents: `null` has no tools of its own, `inside-v1` is no process."""
    return {"harness": {"id": harness}, "runtime": {"type": "subprocess"}, **fields}


class Riddles(Verifiers):
    name = "riddles"
    settings: ClassVar = {"taskset": {"id": "riddles-v1"}, "agent": agent("null")}

    async def score_turn(self, item, turn, ctx):
        return -0.01 * len(turn.message.content)

    def scripted_choices(self, item, messages, tools, skill):
        assert [message.role for message in messages] == ["system", "user"]
        said = (item["task"]["answer"], f"I think it is {item['task']['answer']}", "Rome", "Rome, by the sea")
        return [Choice(probability=0.25, message=say(each)) for each in said]


class Shelves(Verifiers):
    name = "shelves"
    settings: ClassVar = {"taskset": {"id": "shelves-v1"}, "agent": agent("null", max_turns=5)}

    async def score_turn(self, item, turn, ctx):
        took = [json.loads(each.arguments).get("what") for each in turn.message.tool_calls]
        return 0.1 * sum(what in item["task"]["wanted"] for what in took) if took else None

    def scripted_choices(self, item, messages, tools, skill):
        assert sorted(tool.name for tool in tools) == ["shelves_look", "shelves_take"]
        done = sum(message.role == "assistant" for message in messages)
        if done == 0:
            return [Choice(probability=1.0, message=call("shelves_look", {}, content="Let me see."))]
        things = ("tea", "salt", "rice", "oil", "gold")
        ends = 0.4 * (done > 1)
        taking = [call("shelves_take", {"what": each}) for each in things]
        return [
            Choice(probability=ends, message=say("Here you are.")),
            *(Choice(probability=(1 - ends) / len(taking), message=each) for each in taking),
        ]


class Orders(Verifiers):
    name = "orders"
    settings: ClassVar = {
        "id": "user-sim",
        "taskset": {"id": "orders-v1"},
        "assistant": agent("inside-v1"),
        "user": agent("inside-v1", model="customer", max_turns=4),
    }
    other_models: ClassVar = {"customer": "user"}

    async def score_turn(self, item, turn, ctx):
        return float("?" in turn.message.content) / 10

    def scripted_choices(self, item, messages, tools, skill):
        order = " ".join(item["task"]["order"].values())
        said = ("What size?", "What kind?", f"One {order}.", "One small cola.")
        return [Choice(probability=0.25, message=say(each)) for each in said]

    def scripted_user(self, item, messages):
        return customer(messages[0].content, messages[-1].content)


def customer(persona, heard):
    size, kind = persona.partition("You want a ")[2].partition(".")[0].split()
    if heard.startswith("One "):
        return "###DONE###"
    return {"What size?": size, "What kind?": kind}.get(heard, "A pizza, please.")


@pytest.fixture(autouse=True)
def _verifiers_at_home(monkeypatch, tmp_path):
    """Its environments are found, its programs run in this interpreter, and its caches are thrown away."""
    kinds = str(HERE / "kinds")
    monkeypatch.syspath_prepend(kinds)
    monkeypatch.setenv("PYTHONPATH", kinds)
    monkeypatch.setenv("TEST_PYTHON", sys.executable)
    monkeypatch.setenv("PATH", f"{HERE / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))


_PLAYED = {}


def opened(kind, **settings):
    return kind(AgentEnvConfig(group_size=3, min_group_size=1, scripted_skill=0.5, **settings))


async def played(kind):
    """The groups of its two tasks, or of one where each rollout starts two programs; for several tests."""
    if kind not in _PLAYED:
        env = opened(kind, max_items=1 if kind is Shelves else 2)
        async with env:
            groups = await asyncio.gather(*(env.run_group(task) for task in env.tasks()))
            _PLAYED[kind] = [(env, group) for group in groups]
    return _PLAYED[kind]


async def run_by_verifiers_alone(kind, env, trajectory):
    """verifiers' trace of the same completions, which it runs without us."""
    left = [turn.message for turn in trajectory.turns]

    def script(fields):
        if fields["model"] == "customer":
            first, *_, last = [message["content"] for message in fields["messages"]]
            return say(customer(first, last))
        return left.pop(0)

    alone = vf.load_environment(vf.resolve_env_config(kind.settings))
    async with replaying(script) as url, alone.serving():
        context = vf.ModelContext(model="scripted", client=vf.EvalClientConfig(base_url=url))
        episode = await alone.run_episode(env.by_id[trajectory.item_id], context)
    assert not left
    assert episode.ok
    (trace,) = [trace for trace in episode.traces if trace.agent.trainable]
    return trace


every_kind = pytest.mark.parametrize("kind", [Riddles, Shelves, Orders])


@every_kind
async def test_the_outcome_is_what_verifiers_gives_the_same_completions(kind):
    scores = set()
    for env, credited in await played(kind):
        assert credited.group.failures == ()
        trajectories = credited.group.trajectories
        traces = await asyncio.gather(*(run_by_verifiers_alone(kind, env, each) for each in trajectories))
        for trajectory, alone in zip(trajectories, traces, strict=True):
            assert trajectory.stop_reason == "completed"
            parts = {name: reward.value for name, reward in alone.rewards.items()}
            assert trajectory.rewards.outcome == pytest.approx(alone.reward)
            assert dict(trajectory.rewards.outcome_parts) == pytest.approx(parts)
            assert len(trajectory.turns) == alone.num_turns
            scores.add(trajectory.rewards.outcome)
    assert len(scores) > 1


async def test_what_its_simulated_user_said_is_a_reply_and_its_own_calls_are_no_turns():
    for _, credited in await played(Orders):
        for trajectory in credited.group.trajectories:
            said = [turn.message.content for turn in trajectory.turns]
            for turn, after in zip(trajectory.turns, trajectory.turns[1:], strict=False):
                (reply,) = turn.replies
                persona = trajectory.other_calls[0].messages[0].content
                assert reply.content == customer(persona, turn.message.content)
                assert after.index == turn.index + 1
            assert len(trajectory.other_calls) in (len(said), len(said) + 1)


async def test_a_budget_of_ours_ends_its_agent_which_verifiers_gives_no_reward_then():
    async with opened(Orders, max_turns=1) as env:
        group = await env.rollout_group(env.tasks()[0], 6)
    stopped = [each for each in group.trajectories if each.stop_reason == "max_turns"]
    assert stopped
    for trajectory in stopped:
        assert len(trajectory.turns) == 1
        assert trajectory.rewards.outcome == 0.0
        assert trajectory.rewards.turns[0] == pytest.approx(
            "?" in trajectory.turns[0].message.content and 0.1
        )


async def test_what_breaks_in_verifiers_is_an_error_of_the_agent_and_keeps_its_turns():
    class Broken(Riddles):
        def load_items(self):
            items = super().load_items()
            for task in self.by_id.values():
                task.score = self.broken
            return items

        async def broken(self, trace, runtime):
            raise ValueError("no verdict")

    async with opened(Broken) as env:
        group = await env.rollout_group(env.tasks()[0], 1)
    (trajectory,) = group.trajectories
    assert trajectory.stop_reason == "agent_error"
    assert "no verdict" in trajectory.agent.error
    assert len(trajectory.turns) == 1
