"""The canaries, once for all tests."""

import pytest

from tests.environments.conftest import _running_api, api, fresh_api  # noqa: F401
from turnwise.lab.probe.diagnosis import CanaryTokens
from turnwise.lab.probe.trainer_probe import ProbeRequest, begin_probe


@pytest.fixture(scope="session")
def probe(tmp_path_factory):
    return begin_probe(tmp_path_factory.mktemp("probe"), ProbeRequest(lr=1.0))


@pytest.fixture(scope="session")
def tokens(probe):
    return CanaryTokens.of(probe.before, probe.groups)
