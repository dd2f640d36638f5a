"""Sandboxes in every isolation tier for the tests of this folder."""

import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from tools.errors import IsolationError, SandboxCreateError
from tools.sandbox import Opening
from tools.sandbox.base import SandboxLimits
from tools.sandbox.docker.backend import open_docker
from tools.sandbox.docker.engine import connect
from tools.sandbox.inside import kernel
from tools.sandbox.local import launch
from tools.sandbox.local.backend import open_local
from tools.sandbox.local.session import stop

SMALL = SandboxLimits(memory_mb=192, pids=48, disk_mb=48, file_mb=16, output_mb=4)

NETWORKED = replace(SMALL, network="full")
"""What tier C can give."""

TEST_IMAGE = "turnwise-test"
"""Made by `scripts/build_test_image.sh` for the tests that need a Docker engine."""


@pytest.fixture(scope="session")
def docker_engine():
    """The engine, with the test image; a test is skipped without it, unless it has to run."""
    try:
        engine = connect()
        missing = (
            None if engine.image(TEST_IMAGE) else f"no image {TEST_IMAGE}: run scripts/build_test_image.sh"
        )
    except IsolationError as error:
        missing = str(error)
    if missing is None:
        return engine
    if os.environ.get("TURNWISE_REQUIRE_DOCKER") == "1":
        pytest.fail(missing)
    return pytest.skip(missing)


@pytest.fixture(scope="session")
def tier_c():
    """A machine that can make tier C; as root every one with Landlock has to."""
    if kernel.abi() == 0:
        pytest.skip("this kernel has no Landlock")
    if os.geteuid() == 0:
        return
    try:
        session = launch.start("C", NETWORKED)
    except SandboxCreateError as error:
        pytest.skip(str(error))
    stop(session)
    if "pids" not in session.enforced:
        pytest.skip("without control groups nothing bounds the processes of an ordinary user")


@pytest.fixture
async def sandbox():
    async with open_local(SMALL, tier="B") as opened:
        yield opened


@pytest.fixture
def own_tmp(monkeypatch):
    """A folder for temporary files where no other program looks for orphans; agents can pass through."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr("tempfile.tempdir", folder)
        yield


EACH_TIER = ["B", "C", pytest.param("docker", marks=pytest.mark.docker)]


@pytest.fixture
def opening(request):
    """Gives what opens sandboxes of one of `EACH_TIER`."""

    def of(tier, limits=SMALL):
        if tier == "docker":
            request.getfixturevalue("docker_engine")
            return Opening("docker", open_docker, limits, {"image": TEST_IMAGE})
        if tier == "C":
            request.getfixturevalue("tier_c")
            # Without namespaces the network cannot be taken away.
            limits = replace(limits, network="full")
        return Opening("local", open_local, limits, {"tier": tier})

    return of
