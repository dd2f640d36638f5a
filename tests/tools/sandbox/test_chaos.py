"""Lifecycles with random cancellations and kills leave nothing; more of them with `--soak`."""

import asyncio
import os
import subprocess
import sys
from asyncio.subprocess import PIPE
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tools.sandbox import chaos
from tests.tools.sandbox.conftest import SMALL, TEST_IMAGE
from tests.tools.sandbox.leftovers import leftovers, settled
from tools.sandbox import list_sandboxes, open_sandbox, reap_sandboxes
from tools.sandbox.base import SandboxLimits
from tools.sandbox.check import Target
from tools.sandbox.docker.container import Spec
from tools.sandbox.docker.manager import manager
from tools.sandbox.host.ownership import identity
from tools.sandbox.local import cgroup

DOCKER = Target(backend="docker", options={"image": TEST_IMAGE})
LOCAL = {
    "B": Target(options={"tier": "B"}),
    "C": Target(options={"tier": "C"}, limits=SandboxLimits(network="full")),
}


@pytest.mark.parametrize("target", LOCAL.values(), ids=LOCAL)
@pytest.mark.timeout(1200)
async def test_lifecycles_that_end_at_random_leave_nothing(target, soak):
    told = await chaos.run(target, 300 if soak else 30, seed=1)
    assert all(told["ended"].values())
    assert told["killed_hosts"] > 0
    assert told["after"] == told["before"]
    # The process that sandboxes of tier B are forked from stays.
    assert told["before"]["processes"] <= 1
    assert [told["before"][kind] for kind in ("groups", "directories", "containers")] == [0, 0, 0]


@pytest.mark.docker
@pytest.mark.soak
@pytest.mark.usefixtures("docker_engine")
@pytest.mark.timeout(1200)
async def test_containers_that_end_at_random_leave_nothing():
    told = await chaos.run(DOCKER, 60, seed=2)
    assert told["killed_hosts"] > 0
    assert told["after"] == told["before"]
    assert told["before"]["containers"] == 0


async def test_what_a_killed_host_leaves_would_be_seen():
    told = await chaos.run(LOCAL["B"], 5, seed=3, leak=True)
    assert told["after"]["processes"] == told["before"]["processes"] + told["killed_hosts"]


SMALL_LOCAL = Target(limits=SMALL)
SMALL_DOCKER = replace(DOCKER, limits=SMALL)


def sleeping():
    return subprocess.Popen(["sleep", "600"])


async def test_what_dead_processes_left_is_swept_first(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with sleeping() as other:
        (tmp_path / f"turnwise.{identity(other.pid)}.0").mkdir()
        other.kill()
    wanted = await leftovers(SMALL_LOCAL)
    assert (await leftovers(SMALL_LOCAL, [other.pid])).directories == 1
    assert await settled(SMALL_LOCAL, wanted, [other.pid], within_s=20) == wanted


@pytest.mark.docker
async def test_a_container_that_is_not_removed_is_seen(docker_engine):
    managed = manager()
    before = await leftovers(SMALL_DOCKER)
    container = await asyncio.to_thread(
        managed.make, Spec(image=docker_engine.image(TEST_IMAGE), limits=SMALL)
    )
    try:
        # Its connection is a descriptor.
        expected = replace(before, containers=before.containers + 1, descriptors=before.descriptors + 1)
        assert await settled(SMALL_DOCKER, expected, within_s=20) == expected
    finally:
        await asyncio.to_thread(managed.drop, container)
    assert await settled(SMALL_DOCKER, before) == before


IN_A_NAMESPACE_OF_ITS_OWN = """
import asyncio, sys
from tools.sandbox import open_sandbox
from tools.sandbox import reap_sandboxes

async def main():
    async with open_sandbox("local") as sandbox:
        reaped = await reap_sandboxes("local")
        print(len(reaped), flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        done = await sandbox.exec("echo alive")
        print(done.stdout.decode().strip(), flush=True)

asyncio.run(main())
"""


async def test_two_process_id_namespaces_over_one_cgroup_mount_sweep_nothing_of_each_other():
    if not cgroup.controllers():
        pytest.skip("no control group can be made here")
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", IN_A_NAMESPACE_OF_ITS_OWN]
    async with open_sandbox("local", limits=SMALL) as sandbox:
        other = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, cwd=Path(__file__).parents[3]
        )
        assert int(await other.stdout.readline()) == 0
        # Others are orphans that tests of other workers left.
        living = {entry.name for entry in await list_sandboxes("local") if entry.owner in (os.getpid(), None)}
        assert living.isdisjoint(entry.name for entry in await reap_sandboxes("local"))
        cgroup.sweep.cache_clear()
        cgroup.sweep()
        answers, _ = await other.communicate(b"\n")
        assert answers.strip() == b"alive"
        assert (await sandbox.exec("echo alive")).stdout.strip() == b"alive"
