"""A supervisor that falls silent: its rollout is dropped, or scored where limits count what the agent did."""

import os
import signal

import pytest

from environments.base_env import AgentEnv
from environments.policy.scripted import Choice, call, say
from environments.rollout.items.tasks import GroupTask
from environments.trajectory import StopReason
from tests.adversarial.tiers import OPENERS, docker_engine, tier_c  # noqa: F401  # fixtures
from tests.tools.sandbox.host.test_channel import at_a_limit, docker_supervisor
from tools.sandbox import Opening
from tools.sandbox.conformance.checks import first_process_of, marker, sleeper
from tools.sandbox.docker import container
from tools.sandbox.host import channel, silence
from tools.sandbox.local import cgroup
from tools.terminal import terminal

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root has control groups here")
HONEST = 0.75


async def supervisor_of(sandbox, tier):
    if tier == "docker":
        return docker_supervisor()
    if tier == "C":
        return int((await sandbox.exec("echo $PPID")).text())
    return first_process_of(await sleeper(sandbox, marker()))


class Silenced(AgentEnv):
    """Its supervisor is stopped from outside, beside what its agent left running."""

    name = "silenced"
    tools = (terminal,)
    tier, kind = "B", ""

    async def load_items(self):
        return ["item"]

    def format_prompt(self, item):
        return "Do it."

    def open_sandbox(self):
        return Opening(*OPENERS[self.tier])

    async def prepare(self, item, sandbox):
        supervisor = await supervisor_of(sandbox, self.tier)
        if self.kind:
            await at_a_limit(sandbox, self.kind)
        os.kill(supervisor, signal.SIGSTOP)

    async def compute_reward(self, item, trajectory, ctx):
        return HONEST if b"here" in (await ctx.sandbox.exec("echo here")).stdout else 0.5

    def scripted_choices(self, item, messages, tools, skill):
        done = any(message.role == "assistant" for message in messages)
        move = say("Done.") if done else call("terminal", {"command": "true", "timeout_s": 1})
        return [Choice(probability=1.0, message=move)]


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(channel, "_GRACE_S", 4.0)
    monkeypatch.setattr(container, "_ANSWER_S", 20.0)
    monkeypatch.setattr(silence, "_BUSY_SHARE", 0.01)


async def group_of(tier, kind=""):
    env = Silenced()
    env.tier, env.kind = tier, kind
    return await env.rollout_group(GroupTask(item="item", item_id="item"), 1)


@pytest.mark.usefixtures("tier_c")
@pytest.mark.parametrize("tier", ["B", "C"])
async def test_a_supervisor_that_is_stopped_from_outside_drops_the_rollout(tier):
    group = await group_of(tier)
    assert group.trajectories == ()
    assert [failure.stop_reason for failure in group.failures] == [StopReason.SANDBOX_LOST]


@pytest.mark.docker
@pytest.mark.usefixtures("docker_engine")
async def test_in_a_container_it_goes_on_and_the_score_is_that_of_an_undisturbed_rollout():
    group = await group_of("docker")
    assert group.failures == ()
    assert [each.score for each in group.trajectories] == [HONEST]


@pytest.mark.parametrize("kind", ["processes", "memory", "processors"])
async def test_an_agent_that_is_at_a_limit_meanwhile_gets_the_floor_and_is_never_missing(kind):
    group = await group_of("B", kind)
    assert group.failures == ()
    (trajectory,) = group.trajectories
    assert trajectory.agent_caused.cause == "sandbox_lost"
    assert trajectory.score == 0.0


@pytest.mark.docker
@pytest.mark.usefixtures("docker_engine")
@pytest.mark.parametrize("kind", ["processes", "processors"])
async def test_an_agent_that_is_at_a_limit_of_its_container_gets_the_floor(kind):
    group = await group_of("docker", kind)
    assert group.failures == ()
    assert [each.score for each in group.trajectories] == [0.0]


async def test_a_run_without_control_groups_says_at_its_start_what_nothing_bounds_or_tells(
    monkeypatch, caplog
):
    monkeypatch.setattr(cgroup, "_controllers", dict)
    env = Silenced()
    env.tier = "B"
    await env.preflight(print)
    assert "memory is bounded for each process (192 MB), not for all together" in caplog.text
    assert "nothing tells whether its agent silenced it" in caplog.text
