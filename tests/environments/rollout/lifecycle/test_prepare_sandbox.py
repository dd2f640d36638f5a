"""`prepare_sandbox`: once per key; rollouts and verifications begin with copies of what it left."""

import asyncio
import os
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig
from environments.rollout.lifecycle.sandboxes import Snapshots
from tests.tools.sandbox.conftest import TEST_IMAGE, docker_engine
from tools.errors import ConfigError
from tools.sandbox.base import SandboxSpec, Snapshot

__all__ = ["docker_engine"]


DOCKER = {"sandbox": "docker", "sandbox_image": TEST_IMAGE}


class Prepared(AgentEnv):
    """The first letter of an item is the key of its sandbox."""

    name = "prepared"
    items_given = ("a1", "a2", "b1")
    spec = SandboxSpec(memory_mb=192, disk_mb=48)

    async def setup(self):
        self.prepared, self.seen = [], []

    async def load_items(self):
        return list(self.items_given)

    def format_prompt(self, item):
        return "Look."

    def sandbox_for(self, item):
        return replace(self.spec, prepared=item[0])

    async def prepare_sandbox(self, item, sandbox):
        self.prepared.append(item[0])
        await sandbox.exec(f"mkdir src; echo {item[0]} > src/key; ln -s src/key link")

    async def compute_reward(self, item, trajectory, ctx):
        found = await ctx.sandbox.exec("cat link; echo changed | tee src/key >mine; rm link; ls")
        verified = await ctx.verify(command="cat link; ls")
        self.seen.append((found.text(), verified.text()))
        return 1.0


def made(env_cls=Prepared, **settings):
    return env_cls(AgentEnvConfig(group_size=2, min_group_size=1, **settings))


async def all_groups(env):
    return await asyncio.gather(*(env.rollout_group(task, 2) for task in env.tasks()))


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="local"),
        pytest.param(DOCKER, id="docker", marks=pytest.mark.docker),
    ],
)
async def test_it_runs_once_per_key_and_no_copy_shows_what_a_sibling_did(settings, request):
    if settings:
        request.getfixturevalue("docker_engine")
    async with made(**settings) as env:
        groups = await all_groups(env)
        assert [group.failures for group in groups] == [()] * 3
        assert sorted(env.prepared) == ["a", "b"]
        assert Counter(env.seen) == {
            ("a\nmine\nsrc\n", "a\nlink\nsrc\n"): 4,
            ("b\nmine\nsrc\n", "b\nlink\nsrc\n"): 2,
        }


async def test_nothing_of_it_is_left_when_the_environment_closes():
    before = folders()  # of tests before this one
    async with made() as env:
        await all_groups(env)
        assert folders() - before
    assert not folders() - before


def folders():
    return set(Path(tempfile.gettempdir()).glob(f"turnwise.*-{os.getpid()}-*"))


async def test_what_it_raises_fails_the_siblings_that_wait_and_the_next_one_tries_again():
    class Breaks(Prepared):
        async def prepare_sandbox(self, item, sandbox):
            await super().prepare_sandbox(item, sandbox)
            if len(self.prepared) == 1:
                raise ZeroDivisionError("once")

    async with made(Breaks) as env:
        task = env.tasks()[0]
        first, second = [await env.rollout_group(task, 2) for _ in range(2)]
    assert [failure.error.split(" (")[0] for failure in first.failures] == ["ZeroDivisionError: once"] * 2
    assert [len(second.trajectories), env.prepared] == [2, ["a", "a"]]


async def test_a_key_without_the_hook_is_refused_at_the_start():
    class Lacks(Prepared):
        prepare_sandbox = AgentEnv.prepare_sandbox

    with pytest.raises(ConfigError, match="gave prepared='a'; write prepare_sandbox"):
        async with made(Lacks):
            pass


async def test_no_more_than_a_few_are_kept_and_none_that_is_in_use():
    made, discarded = [], []

    async def make(spec, item):
        async def discard():
            discarded.append(item)

        made.append(item)
        return Snapshot(options={}, discard=discard)

    snapshots = Snapshots(make)
    async with snapshots.of(SandboxSpec(prepared="0"), 0):
        for number in range(1, 8):
            async with snapshots.of(SandboxSpec(prepared=str(number)), number):
                pass
        assert discarded == [1, 2, 3]
        async with snapshots.of(SandboxSpec(prepared="1"), 1):
            pass
    await snapshots.aclose()
    assert [made.count(1), made.count(0), sorted(set(discarded))] == [2, 1, list(range(8))]
