"""Sandboxes in every isolation tier for the tests of this folder."""

import pytest

from tools.errors import IsolationError
from tools.sandbox.base import SandboxLimits
from tools.sandbox.docker_engine import connect
from tools.sandbox.local import open_local

SMALL = SandboxLimits(memory_mb=192, pids=48, disk_mb=48, file_mb=16, output_mb=4)

TEST_IMAGE = "turnwise-test"
"""Made by `.ci/run` for the tests that need a Docker engine."""


@pytest.fixture(scope="session")
def docker_engine():
    """Skips a test where no Docker engine answers."""
    try:
        return connect()
    except IsolationError as error:
        pytest.skip(str(error))


@pytest.fixture(params=["A", "B"])
def tier(request):
    return request.param


@pytest.fixture
async def sandbox(tier):
    async with open_local(SMALL, tier=tier) as opened:
        yield opened
