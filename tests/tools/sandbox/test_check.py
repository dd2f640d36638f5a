"""The conformance suite, on every backend and tier that answers here."""

import importlib.util

import pytest

from tests.tools.sandbox.conftest import TEST_IMAGE
from tools.sandbox import SandboxLimits
from tools.sandbox.check import Target, all_checks, run_check
from tools.sandbox.conformance import commands, file_safety, isolation, lifecycle, limits, verification

B = Target(options={"tier": "B"})
# Without namespaces the network cannot be taken away.
C = Target(options={"tier": "C"}, limits=SandboxLimits(network="full"))
DOCKER = Target(backend="docker", options={"image": TEST_IMAGE})

IN_C = (isolation, verification, commands, limits, file_safety, lifecycle)
"""Topics in which another mechanism does in C what namespaces do in B; the rest is the same code."""


def is_in_c(check):
    return check.run is not None and check.run.__module__ in {topic.__name__ for topic in IN_C}


# `make test` runs them in tier B.
CASES = [
    *((B, check) for check in all_checks()),
    *((C, check) for check in all_checks() if is_in_c(check)),
    *((DOCKER, check) for check in all_checks()),
]


def marks_of(target):
    docker = [pytest.mark.docker] if target is DOCKER else []
    return docker + ([] if target is B else [pytest.mark.soak])


def id_of(target, check):
    return f"{target.options.get('tier', target.backend)}-{check.name}"


def test_checks_are_numbered_and_120_or_more_can_be_passed():
    assert [check.number for check in all_checks()] == list(range(1, len(all_checks()) + 1))
    assert sum(check.run is not None for check in all_checks()) >= 120


@pytest.mark.parametrize(
    ("target", "check"),
    [pytest.param(target, check, id=id_of(target, check), marks=marks_of(target)) for target, check in CASES],
)
async def test_check(target, check, request):
    if target is DOCKER:
        request.getfixturevalue("docker_engine")
    if target is C:
        request.getfixturevalue("tier_c")
    # Containers take a while.
    await holds(target, check, crowd=4 if target is DOCKER else 16)


@pytest.mark.soak
@pytest.mark.parametrize(
    "check", [pytest.param(check, id=check.name) for check in all_checks() if 111 <= check.number <= 117]
)
async def test_a_check_of_many_sandboxes_with_as_many_as_the_command_opens(check):
    await holds(B, check, crowd=64)


async def holds(target, check, *, crowd):
    result = await run_check(target, check, crowd=crowd)
    if result.status == "skipped":
        pytest.skip(result.reason)
    assert result.status == "ok", result.reason


def test_the_modules_that_no_sandbox_may_import_are_ours():
    for name in isolation.HOST_MODULES.split():
        assert importlib.util.find_spec(name) is not None, name
