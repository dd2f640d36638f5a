"""What is said where nothing can isolate: all that is in the way, and no way out that leads nowhere."""

import subprocess
from pathlib import Path

import pydantic
import pytest

from tests.adversarial.tiers import docker_engine  # noqa: F401  # a fixture
from tests.tools.sandbox.conftest import TEST_IMAGE
from tools.errors import IsolationError, SandboxCreateError
from tools.sandbox.base import SandboxLimits
from tools.sandbox.local import cgroup, probe, tiers
from tools.sandbox.local.tiers import Agent

ROOT = Path(__file__).parents[2]
_OPEN = """
import asyncio, sys
sys.path[:0] = ["/code", "/packages"]
from tools.sandbox import open_sandbox
async def main():
    async with open_sandbox("local", network=sys.argv[1]) as sandbox:
        print(sandbox.record.tier, (await sandbox.exec("echo on")).text())
asyncio.run(main())
"""
NETWORK, PIDS = "cannot be kept off the network", "nothing bounds how many processes"


@pytest.fixture
def without_namespaces(monkeypatch):
    def check(tier, limits):
        del limits
        if tier == "B":
            raise SandboxCreateError("no sandbox of tier B: unshare: Operation not permitted")

    monkeypatch.setattr(probe, "check", check)
    probe._best_tier.cache_clear()
    yield monkeypatch
    probe._best_tier.cache_clear()


def refusal(limits: SandboxLimits) -> str:
    with pytest.raises(IsolationError) as refused:
        probe.choose_tier(limits)
    return str(refused.value)


def test_an_ordinary_user_without_namespaces_hears_of_every_obstacle(without_namespaces):
    without_namespaces.setattr(tiers, "agent", lambda: Agent(root=False, uid=1, gid=1))
    without_namespaces.setattr(cgroup, "controllers", dict)
    said = refusal(SandboxLimits(cpus=1.0))
    assert all(reason in said for reason in ("unshare", NETWORK, PIDS, "`cpus`"))
    assert "sandbox_network full`, in a delegated control group" in said


@pytest.mark.parametrize(("can_mount", "told"), [(True, True), (False, False)])
def test_to_be_root_is_advised_only_where_root_could_make_namespaces(without_namespaces, can_mount, told):
    without_namespaces.setattr(tiers, "agent", lambda: Agent(root=False, uid=1, gid=1))
    without_namespaces.setattr(probe.os, "geteuid", lambda: 1000)
    without_namespaces.setattr(tiers, "root_can_mount", lambda: can_mount)
    assert ("To fix it, run as root" in refusal(SandboxLimits())) == told


@pytest.mark.docker
@pytest.mark.usefixtures("docker_engine")
@pytest.mark.parametrize(
    ("user", "network", "expected"),
    [
        ("0", "full", ["C on"]),
        ("0", "none", [NETWORK]),
        ("1234", "none", [NETWORK, PIDS]),
        ("1234", "full", [PIDS]),
    ],
)
def test_in_a_container_without_privileges(user, network, expected):
    packages = Path(pydantic.__file__).parents[1]
    ran = subprocess.run(
        ["docker", "run", "--rm", "--user", user, "--network", "none", "-v", f"{ROOT}:/code:ro", "-v",
         f"{packages}:/packages:ro", "--entrypoint", "python3", TEST_IMAGE, "-B", "-c", _OPEN, network],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "No module named" in ran.stderr:
        pytest.skip("the image's Python is another one than that of these packages")
    last = (ran.stdout or ran.stderr).strip().splitlines()[-1]
    assert [words for words in expected if words not in last] == []
    assert (PIDS in last) == (PIDS in expected)
