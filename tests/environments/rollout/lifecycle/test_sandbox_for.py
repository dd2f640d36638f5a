"""`sandbox_for`: an image and limits per item, for its rollouts and for its verifications."""

import asyncio
import io
import subprocess
import threading
from pathlib import Path

import pytest
from rich.console import Console

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig
from environments.record.recorder import read_groups
from environments.rollout.items.tasks import GroupTask
from environments.run.process_run import process
from tests.tools.sandbox.conftest import TEST_IMAGE, docker_engine
from tools.errors import ConfigError, RunError
from tools.sandbox.base import SandboxSpec

__all__ = ["docker_engine"]


class PerItem(AgentEnv):
    name = "per_item"

    async def load_items(self):
        return [SandboxSpec()]

    def format_prompt(self, item):
        return "Look."

    async def sandbox_for(self, item):
        return item

    async def compute_reward(self, item, trajectory, ctx):
        found = await ctx.verify(command="cat /task; ulimit -a >/dev/null")
        ctx.metrics["tasks_of_the_verifier"] = float(found.text() or -1)
        own = await ctx.sandbox.exec("cat /task")
        return float(own.text() or 0)


def made(env_cls=PerItem, **settings):
    return env_cls(AgentEnvConfig(group_size=1, min_group_size=1, **settings))


async def rolled_out(item, env_cls=PerItem, **settings):
    return await made(env_cls, **settings).rollout_group(GroupTask(item=item, item_id="i"), 1)


async def test_limits_of_an_item_win_over_the_settings():
    spec = SandboxSpec(memory_mb=192, disk_mb=32)
    (trajectory,) = (await rolled_out(spec, sandbox_network="full")).trajectories
    limits = trajectory.sandbox.limits
    assert (limits.memory_mb, limits.disk_mb, limits.network) == (192, 32, "full")


async def test_the_verifiers_sandbox_has_the_limits_of_the_item():
    class Looks(PerItem):
        async def compute_reward(self, item, trajectory, ctx):
            async with ctx.fresh_sandbox() as fresh:
                return fresh.record.limits.pids

    (trajectory,) = (await rolled_out(SandboxSpec(pids=33), Looks)).trajectories
    assert trajectory.score == 33


@pytest.mark.parametrize("network", ["none", "full"])
async def test_the_verifiers_sandbox_has_the_network_of_the_settings(network):
    class Networked(PerItem):
        async def compute_reward(self, item, trajectory, ctx):
            async with ctx.fresh_sandbox() as fresh:
                assert fresh.record.limits.network == network
            return (await ctx.verify(command="cat /proc/net/dev")).text().count(":")

    def of_host():
        return Path("/proc/net/dev").read_text().count(":")

    before = of_host()
    (trajectory,) = (await rolled_out(None, Networked, sandbox_network=network)).trajectories
    # Containers of other tests bring devices of their own, and take them away.
    devices = {before, of_host()} if network == "full" else {1}
    assert trajectory.sandbox.limits.network == network
    assert trajectory.score in devices


async def test_an_item_without_one_has_a_sandbox_as_the_settings_say():
    (trajectory,) = (await rolled_out(None, sandbox_memory_mb=777)).trajectories
    assert trajectory.sandbox.limits.memory_mb == 777


@pytest.mark.parametrize("given", ["python:3", {"image": "a"}, 3], ids=["text", "mapping", "number"])
async def test_what_is_no_spec_is_a_failure_that_says_what_to_give(given):
    (failure,) = (await rolled_out(given)).failures
    assert "give a turnwise.SandboxSpec, or None" in failure.error


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"memory_mb": 0}, id="memory"),
        pytest.param({"network": "some"}, id="network"),
        pytest.param({"image": ""}, id="empty-image"),
        pytest.param({"image": 3}, id="no-name"),
    ],
)
def test_a_spec_that_no_sandbox_can_have_is_refused(fields):
    with pytest.raises(ConfigError, match="a sandbox cannot have"):
        SandboxSpec(**fields)


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        pytest.param({}, "--env.sandbox docker", id="local"),
        pytest.param({"sandbox": "none"}, "--env.verify_sandbox docker", id="none"),
    ],
)
async def test_an_image_where_sandboxes_have_none_is_refused_at_the_start(settings, flag):
    class Imaged(PerItem):
        async def load_items(self):
            return [SandboxSpec(image="python:3")]

    with pytest.raises(ConfigError, match=f"names the image 'python:3'.* choose {flag}"):
        async with made(Imaged, **settings):
            pass


async def test_an_item_whose_hook_breaks_fails_its_own_rollouts_alone():
    class Breaks(PerItem):
        async def load_items(self):
            return [1, 0]

        def sandbox_for(self, item):
            return SandboxSpec(pids=64 // item)

    async with made(Breaks) as env:
        first, second = [await env.rollout_group(task, 1) for task in env.tasks()]
    assert [len(first.trajectories), second.failures[0].error_class] == [1, "ZeroDivisionError"]


@pytest.mark.parametrize("kind", ["def", "async"])
async def test_a_hook_that_hangs_ends_the_start_at_its_limit(kind):
    go_on = threading.Event()

    def hangs(self, item):
        go_on.wait()

    async def hangs_async(self, item):
        await asyncio.Event().wait()

    env_cls = type("Hangs", (PerItem,), {"sandbox_for": hangs if kind == "def" else hangs_async})
    with pytest.raises(RunError, match=r"sandbox_for took longer than 0.1 s"):
        async with made(env_cls, hook_timeout_s=0.1):
            pass
    go_on.set()


@pytest.fixture(scope="module")
def task_images(docker_engine, tmp_path_factory):
    tags = []
    for number in (1, 2):
        folder = tmp_path_factory.mktemp(f"image{number}")
        (folder / "task").write_text(str(number))
        (folder / "Dockerfile").write_text(f"FROM {TEST_IMAGE}\nCOPY task /task\n")
        tags.append(f"turnwise-test-task:{number}")
        subprocess.run(["docker", "build", "-q", "-t", tags[-1], folder], check=True, capture_output=True)
    tags.append("turnwise-test-task:one-again")
    subprocess.run(["docker", "tag", tags[0], tags[2]], check=True)
    yield tags
    subprocess.run(["docker", "rmi", "--no-prune", *tags], check=True, capture_output=True)


@pytest.mark.docker
async def test_each_item_and_its_verifier_run_in_the_items_image(task_images, tmp_path):
    class Images(PerItem):
        async def load_items(self):
            specs = [SandboxSpec(image=image) for image in (*task_images, "turnwise-nowhere:1")]
            return [{"id": str(index), "spec": spec} for index, spec in enumerate(specs)]

        def sandbox_for(self, item):
            return item["spec"]

    shown = io.StringIO()
    path = tmp_path / "r.jsonl"
    env = made(
        Images,
        sandbox="docker",
        data_path_to_save_groups=str(path),
        max_failed_groups=1,
        estimator_params={"singleton": "raw"},
    )
    code = await process(env, Console(file=shown, width=200))
    groups = {each.group.item_id: each.group for each in read_groups(path)}
    scores = {
        name: (group.trajectories[0].score, group.trajectories[0].metrics["tasks_of_the_verifier"])
        for name, group in groups.items()
        if group.trajectories
    }
    assert scores == {"0": (1.0, 1.0), "1": (2.0, 2.0), "2": (1.0, 1.0)}
    assert groups["3"].failures[0].error_class == "ImageUnavailable"
    assert "turnwise-nowhere:1" in groups["3"].failures[0].error
    assert code == 0
    assert "4 images, each made ready" in shown.getvalue()
    assert ", from 2 images" in shown.getvalue()


@pytest.mark.docker
@pytest.mark.usefixtures("docker_engine")
async def test_a_run_of_which_no_image_can_be_had_is_refused():
    class Missing(PerItem):
        async def load_items(self):
            return [SandboxSpec(image=f"turnwise-nowhere:{number}") for number in (1, 2)]

    with pytest.raises(ConfigError, match="no sandbox that sandbox_for asks for can be opened"):
        async with made(Missing, sandbox="docker"):
            pass


@pytest.mark.docker
@pytest.mark.usefixtures("docker_engine")
async def test_the_image_is_made_ready_first_and_that_is_told(tmp_path):
    (tmp_path / "Dockerfile").write_text(f"FROM {TEST_IMAGE}\nENV A=1\n")

    class OneImage(PerItem):
        sandbox_for = AgentEnv.sandbox_for

    lines = []
    await made(OneImage, sandbox="docker", sandbox_image=str(tmp_path)).preflight(lines.append)
    assert lines[0] == f"building {tmp_path}"
    assert lines[-1] == f"building {tmp_path}: done"
