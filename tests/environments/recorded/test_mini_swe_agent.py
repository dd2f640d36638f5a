"""mini-swe-agent in our process: what it forgets of its history, and how it leaves a rollout that is over."""

import importlib
import os
import sys
from types import MappingProxyType

import pytest

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig
from environments.policy.rendering.chatml import ChatMLRenderer
from environments.policy.scripted import Choice, call, say
from environments.rollout.agents.command import Command
from tests.environments.recorded.examples import example
from tests.environments.test_row_contract import check_masks, contexts

QUIET = {"MSWEA_SILENT_STARTUP": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
os.environ.update(QUIET)
if not os.environ.get("TURNWISE_REQUIRE_AGENTS"):
    pytest.importorskip("minisweagent", reason="needs mini-swe-agent: see requirements/agents.in")
litellm = importlib.import_module("litellm")
MiniSwe = example("mini_swe").MiniSwe
pytestmark = pytest.mark.filterwarnings("ignore:Item:UserWarning")  # of litellm's types
RENDERER = ChatMLRenderer.embedded()
SUBMIT = call("bash", {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"})


async def played(*steps, hooks=MappingProxyType({}), **settings):
    """The only rollout of an agent that takes these steps, by their order."""

    def scripted_choices(self, item, messages, tools, skill):
        said = len(asked)
        asked.append(messages)
        return [Choice(probability=1.0, message=steps[said])]

    asked = []
    cls = type("Steps", (MiniSwe,), {"scripted_choices": scripted_choices, **hooks})
    async with cls(AgentEnvConfig(group_size=1, min_group_size=1, **settings)) as env:
        group = await env.rollout_group(env.tasks()[0], 1)
        check_masks(env, group)
    (trajectory,) = (*group.trajectories, *group.failures)
    return trajectory


async def test_an_answer_without_a_call_which_it_forgets_is_a_turn_and_the_next_one_a_fork():
    fix = call("bash", {"command": "sed -i s/max/min/ program.py"}, content="The first one.")
    trajectory = await played(fix, say("I think that is all."), SUBMIT)
    assert trajectory.stop_reason == "completed"
    assert [turn.fork for turn in trajectory.turns] == [None, None, "agent"]
    fixed, forgotten, _ = trajectory.turns
    assert '"returncode": 0' in fixed.tool_results[0].content
    assert (forgotten.tool_results, forgotten.replies) == ((), ())
    assert trajectory.rewards.turns == (0.5, 0.0, 0.0)
    assert (trajectory.exact, len(trajectory.rows)) == (True, 2)
    for turn, seen in zip(trajectory.turns, contexts(trajectory), strict=True):
        row = trajectory.rows[turn.span.row].token_ids
        assert RENDERER.prompt_ids(seen, trajectory.tools) == row[: turn.span.start]
    assert "Tool call error" in seen[-1].content
    assert forgotten.message not in seen


async def test_it_leaves_at_once_when_its_turns_are_used_up():
    met = []

    async def play(self, item, ctx):
        try:
            await MiniSwe.play(self, item, ctx)
        except litellm.BadRequestError as error:
            met.append(error.message)
            raise

    look = call("bash", {"command": "ls"})
    trajectory = await played(look, look, look, hooks={"play": play}, max_turns=2)
    assert (trajectory.stop_reason, len(trajectory.turns)) == ("max_turns", 2)
    (message,) = met
    assert "this rollout is over: its turns are used up" in message


class AsCommand(AgentEnv):
    """The command line of docs/examples/recorded/README.md."""

    name = "as_command"
    sandbox = "none"
    agent = Command(
        ["mini", "--model", "openai/policy", "--yolo", "--exit-immediately", "--cost-limit", "0", "--task"],
        env={
            "MSWEA_CONFIGURED": "true",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1",
            **QUIET,
        },
    )

    def load_items(self):
        return [{"id": "one"}]

    def format_prompt(self, item):
        return "Say hello."

    def compute_reward(self, item, trajectory, ctx):
        return 1.0

    def scripted_choices(self, item, messages, tools, skill):
        hello = call("bash", {"command": "echo hello"})
        return [Choice(probability=1.0, message=SUBMIT if messages[-1].role == "tool" else hello)]


async def test_its_own_command_line_is_an_agent(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    async with AsCommand(AgentEnvConfig(group_size=1, min_group_size=1)) as env:
        group = await env.rollout_group(env.tasks()[0], 1)
    (trajectory,) = group.trajectories
    assert (trajectory.stop_reason, trajectory.agent.exit_code, trajectory.exact) == ("completed", 0, True)
    assert "issue: Say hello." in trajectory.prompt[-1].content
    said, _ = trajectory.turns
    assert '"output": "hello\\n"' in said.tool_results[0].content


async def test_its_own_command_line_runs_in_the_sandbox():
    lent = {sys.prefix, sys.base_prefix, *(path for path in sys.path if path.endswith("site-packages"))}
    variables = {
        **QUIET,
        "MSWEA_CONFIGURED": "true",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1",
    }

    class Inside(MiniSwe):
        play = AgentEnv.play
        agent = Command(
            [f"{sys.prefix}/bin/mini", "-m", "openai/policy", "-y", "--exit-immediately", "-l", "0", "-t"],
            where="sandbox",
            read_only=sorted(lent),
            env=variables,
        )

        def format_prompt(self, item):
            return item["task"]

    async with Inside(AgentEnvConfig(group_size=1, min_group_size=1, scripted_skill=1.0)) as env:
        group = await env.rollout_group(env.tasks()[0], 1)
    (trajectory,) = (*group.trajectories, *group.failures)
    assert trajectory.stop_reason == "completed", trajectory
    assert trajectory.rewards.turns == (0.5, 0.5, 0.0)
