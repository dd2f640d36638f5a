"""The examples of docs/examples/recorded run as their users run them, with the scripted model."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.environments.recorded.examples import EXAMPLES
from turnwise.records import read_groups

BIN = Path(__file__).resolve().parent / "bin"
QUIET = {"MSWEA_SILENT_STARTUP": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}


def processed(name, package, folder, *options):
    """The groups of a run, which ends well and prints no traceback."""
    if not os.environ.get("TURNWISE_REQUIRE_AGENTS"):
        pytest.importorskip(package, reason=f"needs {package}: see requirements/agents.in")
    command = [sys.executable, "-m", "turnwise", "process", EXAMPLES / f"{name}.py", "--out", "out.jsonl"]
    env = {
        **os.environ,
        **QUIET,
        "HOME": str(folder),
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "TEST_PYTHON": sys.executable,
    }
    done = subprocess.run(
        [*map(str, command), *options], cwd=folder, env=env, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return list(read_groups(folder / "out.jsonl"))


def trajectories(groups):
    found = [each for group in groups for each in group.group.trajectories]
    assert all(each.exact and each.stop_reason == "completed" for each in found)
    assert all(group.group.failures == () for group in groups)
    return found


def test_verifiers(tmp_path):
    small = ("--env.max_items", "1", "--env.group_size", "4", "--env.scripted_skill", "0.5")
    for trajectory in trajectories(processed("verifiers_env", "verifiers", tmp_path, *small)):
        looked, said = trajectory.turns
        right = str(sum(map(int, looked.tool_results[0].content.split())))
        assert trajectory.rewards.outcome_parts == {
            "right": float(said.message.content == right),
            "short": 0.1,
        }
        assert trajectory.rewards.turns == (0.1, 0.0)


def test_mini_swe_agent(tmp_path):
    small = ("--env.group_size", "4", "--env.scripted_skill", "0.7")
    rollouts = trajectories(processed("mini_swe", "minisweagent", tmp_path, *small))
    for trajectory in rollouts:
        commands = [each.arguments for turn in trajectory.turns for each in turn.message.tool_calls]
        repaired = [0.5 * ("sed" in command) for command in commands]
        assert list(trajectory.rewards.turns) == repaired
        results = [turn.tool_results for turn in trajectory.turns]
        assert all('"returncode": 0' in result.content for (result,) in results[:-1])
    assert len({trajectory.score for trajectory in rollouts}) > 1


def test_a_program_with_the_anthropic_client(tmp_path):
    groups = processed("prices_env", "anthropic", tmp_path, "--env.max_items", "3", "--env.group_size", "3")
    for trajectory in trajectories(groups):
        prices = [turn.tool_results[0].content for turn in trajectory.turns[:-1]]
        once = [0.1 if price not in prices[:at] else -0.1 for at, price in enumerate(prices)]
        assert trajectory.rewards.turns == (*once, 0.0)
        assert trajectory.rewards.outcome == float(len(set(prices)) == 3)
        assert trajectory.agent.exit_code == 0
