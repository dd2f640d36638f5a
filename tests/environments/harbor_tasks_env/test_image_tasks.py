"""Ten tasks over images that are built here: an honest solution gets 1, and a forger 0."""

import subprocess

import pytest

from tests.environments.harbor_tasks_env.task_folders import PASS, TOML, Forging, played, scores, write_task
from tests.tools.sandbox.conftest import TEST_IMAGE

pytestmark = pytest.mark.docker
UBUNTU, DEBIAN, PYTHON = BASES = "turnwise-test-base:24.04", "turnwise-test-base:bookworm", "turnwise-test-base:3.11"
"""Three names of the test image, as the base images that tasks begin with."""
