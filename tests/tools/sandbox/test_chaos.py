"""Lifecycles with random cancellations and kills leave nothing; more of them with `--soak`."""

import pytest

from tests.tools.sandbox import chaos
from tests.tools.sandbox.conftest import TEST_IMAGE
from tools.sandbox.base import SandboxLimits
from tools.sandbox.check import Target

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
