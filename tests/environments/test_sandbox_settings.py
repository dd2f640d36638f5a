"""The sandbox settings of an environment reach every sandbox that it opens, and the record."""

from pathlib import Path

import pytest

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig
from environments.rollout.items.tasks import GroupTask
from tests.tools.sandbox.conftest import TEST_IMAGE, docker_engine
from tools.terminal import terminal

__all__ = ["docker_engine"]


TASK = GroupTask(item={}, item_id="item")


class Networked(AgentEnv):
    name = "networked"
    tools = (terminal,)

    def format_prompt(self, item):
        return "Look."

    async def compute_reward(self, item, trajectory, ctx):
        found = await ctx.verify(command="cat /proc/net/dev")
        ctx.metrics["devices_of_the_verifier"] = found.text().count(":")
        return 1.0


def networked(**settings):
    return Networked(AgentEnvConfig(group_size=1, min_group_size=1, **settings))


async def test_the_verifiers_sandbox_has_the_same_network():
    env = networked(sandbox_network="full")
    async with env.open_sandbox() as first, env.open_sandbox() as second:
        assert [one.record.limits.network for one in (first, second)] == ["full", "full"]
    group = await env.rollout_group(TASK, 1)
    devices = Path("/proc/net/dev").read_text().count(":")
    assert group.trajectories[0].metrics["devices_of_the_verifier"] == devices


async def test_without_the_setting_there_is_a_loopback_and_nothing_else():
    group = await networked().rollout_group(TASK, 1)
    assert group.trajectories[0].metrics["devices_of_the_verifier"] == 1


@pytest.mark.docker
@pytest.mark.usefixtures("docker_engine")
async def test_the_image_is_made_ready_first_and_that_is_told(tmp_path):
    (tmp_path / "Dockerfile").write_text(f"FROM {TEST_IMAGE}\nENV A=1\n")
    lines = []
    await networked(sandbox="docker", sandbox_image=str(tmp_path)).preflight(lines.append)
    assert lines[0] == f"building {tmp_path}"
    assert lines[-1] == f"building {tmp_path}: done"
