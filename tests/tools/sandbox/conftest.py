"""Sandboxes in every isolation tier for the tests of this folder."""

import os

import pytest

from tools.errors import IsolationError
from tools.sandbox.base import SandboxLimits
from tools.sandbox.docker_engine import connect
from tools.sandbox.local import open_local

SMALL = SandboxLimits(memory_mb=192, pids=48, disk_mb=48, file_mb=16, output_mb=4)

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


@pytest.fixture(params=["A", "B"])
def tier(request):
    return request.param


@pytest.fixture
async def sandbox(tier):
    async with open_local(SMALL, tier=tier) as opened:
        yield opened
