"""Every way to isolate, for attacks that are to fail in each of them."""

import os
from functools import partial

import pytest

from environments.rewards.reward_context import RolloutContext
from tests.tables import MARKS, across
from tests.tools.sandbox.conftest import TEST_IMAGE, docker_engine, tier_c
from tools.sandbox import Opening, SandboxLimits
from tools.sandbox.docker.backend import open_docker
from tools.sandbox.inside import kernel
from tools.sandbox.local import tiers
from tools.sandbox.local.backend import open_local
from tools.sandbox.local.tiers import Agent

__all__ = ["docker_engine", "fresh", "tier_c"]

LIMITS = SandboxLimits(memory_mb=192, pids=48, disk_mb=32, file_mb=128, output_mb=4)
NETWORKED = SandboxLimits(memory_mb=192, pids=48, disk_mb=32, file_mb=128, output_mb=4, network="full")
OPENERS = {
    "B": ("local", partial(open_local, tier="B"), LIMITS, {}),
    "C": ("local", partial(open_local, tier="C"), NETWORKED, {}),
    # As an ordinary user, whose user the agent then has.
    "C-user": ("local", partial(open_local, tier="C"), NETWORKED, {"allow_unsafe": True}),
    "docker": ("docker", open_docker, LIMITS, {"image": TEST_IMAGE}),
}
EVERY_TIER = [pytest.param(name, marks=MARKS.get(name, [])) for name in OPENERS]


def in_each_tier(attacks, everywhere, *, slow=()):
    """All attacks in tier B, one per mechanism in every tier; with `--soak` all of them in all."""
    return across(attacks, everywhere, "fresh", tuple(OPENERS), slow=slow)


@pytest.fixture(params=EVERY_TIER)
def fresh(request, monkeypatch):
    """Opens sandboxes of one kind."""
    if request.param == "docker":
        request.getfixturevalue("docker_engine")
    if request.param.startswith("C"):
        request.getfixturevalue("tier_c")
    if request.param == "C-user":
        if kernel.abi() < kernel.SIGNAL_SCOPE_ABI:
            pytest.skip("this kernel's Landlock does not keep signals inside")
        monkeypatch.setattr(tiers, "agent", lambda: Agent(root=False, uid=os.getuid(), gid=os.getgid()))
    return lambda: Opening(*OPENERS[request.param])


def context(fresh, sandbox):
    """What a reward is given in a rollout with this sandbox."""
    return RolloutContext(env="attacked", item_id="1", sandbox=sandbox, fresh_sandbox=fresh)
