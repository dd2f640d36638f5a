"""What the local tiers promise about the persistent shell, in a container."""

import pytest

from tests.tools.sandbox.conftest import SMALL, TEST_IMAGE
from tests.tools.sandbox.inside.test_shell import *  # noqa: F403  # the same tests, with the sandbox below
from tools.sandbox.docker.backend import open_docker

pytestmark = [pytest.mark.docker, pytest.mark.soak]
"""The conformance suite's checks of the shell run in a container always."""


@pytest.fixture
async def sandbox(docker_engine):
    async with open_docker(SMALL, image=TEST_IMAGE) as opened:
        yield opened
