"""Coding agents of others play with a scripted model: `make harnesses`."""

import shutil

import pytest

from environments.rollout.agents.command import host_path
from environments.rollout.agents.harnesses import ClaudeCode, Codex, MiniSweAgent, OpenCode, QwenCode
from tests.environments.rollout.agents.recorded import rolled_out
from turnwise import AgentEnv, Choice, StopReason, call, say

ARGUMENTS = {
    "Bash": {"command": "echo $((40+2))", "description": "Add."},
    "bash": {"command": "echo $((40+2))", "description": "Add."},
    "exec_command": {"cmd": "echo $((40+2))"},
    "shell": {"command": ["sh", "-c", "echo $((40+2))"]},
    "run_shell_command": {"command": "echo $((40+2))", "is_background": False},
}
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


class Adds(AgentEnv):
    """The model calls the agent's shell once, then is done."""

    name = "adds"
    sandbox = "none"

    def load_items(self):
        return [{"id": "one"}]

    def format_prompt(self, item):
        return "- Add 40 and 2."

    def compute_reward(self, item, trajectory, ctx):
        return 1.0

    def scripted_choices(self, item, messages, tools, skill):
        shell = next((tool.name for tool in tools if tool.name in ARGUMENTS), None)
        if shell is None or (messages[-1].role == "tool" and shell != "bash"):
            message = say("done")
        elif messages[-1].role == "tool":
            message = call(shell, {"command": SUBMIT}) if len(tools) == 1 else say("done")
        else:
            message = call(shell, ARGUMENTS[shell])
        return [Choice(probability=1.0, message=message)]


@pytest.mark.parametrize("harness", [ClaudeCode, Codex, OpenCode, MiniSweAgent, QwenCode])
def test_a_harness_plays_and_the_thread_with_tools_is_trained(harness, tmp_path, monkeypatch):
    if shutil.which(harness.name, path=host_path()) is None:
        pytest.skip(f"no {harness.name}: make harnesses")
    monkeypatch.chdir(tmp_path)
    (trajectory,) = rolled_out(type("Played", (Adds,), {"agent": harness()}))
    assert trajectory.stop_reason is StopReason.COMPLETED, trajectory.agent
    assert trajectory.exact
    (task,) = {turn.thread for turn in trajectory.turns if not turn.without_tools}
    first, *_ = [turn for turn in trajectory.turns if turn.thread == task]
    assert "42" in first.tool_results[0].content
