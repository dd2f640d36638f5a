"""The conformance suite, on every backend and tier that answers here."""

import pytest

from tests.tools.sandbox.conftest import TEST_IMAGE
from tools.sandbox import SandboxLimits
from tools.sandbox.check import Target, all_checks, run_check

TARGETS = [
    pytest.param(Target(options={"tier": "B"}), id="B"),
    # Without namespaces the network cannot be taken away.
    pytest.param(Target(options={"tier": "C"}, limits=SandboxLimits(network="full")), id="C"),
    pytest.param(
        Target(backend="docker", options={"image": TEST_IMAGE}), id="docker", marks=pytest.mark.docker
    ),
]


def test_there_are_120_checks_and_at_least_110_can_be_passed():
    assert [check.number for check in all_checks()] == list(range(1, 121))
    assert sum(check.run is not None for check in all_checks()) >= 110


@pytest.mark.parametrize("check", all_checks(), ids=lambda check: check.name)
@pytest.mark.parametrize("target", TARGETS)
async def test_check(target, check, request):
    if target.backend == "docker":
        request.getfixturevalue("docker_engine")
    if target.options.get("tier") == "C":
        request.getfixturevalue("tier_c")
    # Containers take a while, and `turnwise sandbox check` opens 64 of them.
    result = await run_check(target, check, crowd=8 if target.backend == "docker" else 16)
    if result.status == "skipped":
        pytest.skip(result.reason)
    assert result.status == "ok", result.reason
