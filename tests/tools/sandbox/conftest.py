"""Sandboxes in every isolation tier for the tests of this folder."""

import pytest

from tools.sandbox.base import SandboxLimits
from tools.sandbox.local import open_local

SMALL = SandboxLimits(memory_mb=192, pids=48, disk_mb=48, file_mb=16, output_mb=4)


@pytest.fixture(params=["A", "B"])
def tier(request):
    return request.param


@pytest.fixture
async def sandbox(tier):
    async with open_local(SMALL, tier=tier) as opened:
        yield opened
