"""The conformance suite, on every backend and tier that answers here."""

import pytest

from tests.tools.sandbox.conftest import TEST_IMAGE
from tools.sandbox import SandboxLimits
from tools.sandbox.check import Target, all_checks, run_check
from tools.sandbox.conformance import (
    commands,
    file_safety,
    isolation,
    lifecycle,
    limits,
    reach,
    truth,
    verification,
)

B = Target(options={"tier": "B"})
# Without namespaces the network cannot be taken away.
C = Target(options={"tier": "C"}, limits=SandboxLimits(network="full"))
DOCKER = Target(backend="docker", options={"image": TEST_IMAGE})

IN_C = {
    commands: "processes of a command are found by their parents, and no namespace ends them",
    limits: "the disk is counted, not bounded by a file system",
    isolation: "Landlock and a filter of system calls do what namespaces do in B",
    file_safety: "files lie on the host's disk, and Landlock decides about them",
    lifecycle: "a monitor ends what a namespace would",
    reach: "Landlock excepts nothing below a folder it allows, and nobody mounts a /proc of its own",
    verification: "another user or Landlock protects a verifier's files, and no mount",
    truth: "it lacks other things, and has to say so",
}
"""Topics in which C gives or lacks other things than B, and why; the rest is the same code, which B runs."""

CASES = [
    *((B, check) for check in all_checks()),
    *(
        (C, check)
        for check in all_checks()
        if check.run and check.run.__module__ in {m.__name__ for m in IN_C}
    ),
    *((DOCKER, check) for check in all_checks()),
]


def id_of(target, check):
    return f"{target.options.get('tier', target.backend)}-{check.name}"


def test_checks_are_numbered_and_120_or_more_can_be_passed():
    assert [check.number for check in all_checks()] == list(range(1, len(all_checks()) + 1))
    assert sum(check.run is not None for check in all_checks()) >= 120


@pytest.mark.parametrize(
    ("target", "check"),
    [
        pytest.param(target, check, id=id_of(target, check), marks=[pytest.mark.docker] * (target is DOCKER))
        for target, check in CASES
    ],
)
async def test_check(target, check, request, soak):
    if target is DOCKER:
        request.getfixturevalue("docker_engine")
    if target is C:
        request.getfixturevalue("tier_c")
    # Containers take a while, and `turnwise sandbox check` opens 64 of them.
    crowd = 64 if soak else 4 if target is DOCKER else 16
    result = await run_check(target, check, crowd=crowd)
    if result.status == "skipped":
        pytest.skip(result.reason)
    assert result.status == "ok", result.reason
