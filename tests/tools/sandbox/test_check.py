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

IN_C = (isolation, verification)
"""Topics in which Landlock, users and a filter of system calls do in C what namespaces do in B."""
OTHERWISE_IN_C = (commands, limits, file_safety, lifecycle)
"""Topics in which processes are found by their parents, the disk is counted and a monitor ends what is left;
the rest is the same code as in B. With `--soak`."""

IN_DOCKER = (isolation,)
"""Topics in which the engine does what namespaces do in B; of the others these stand for the rest."""
OF_EACH_OTHER = {
    "read_and_write_file_binary",
    "write_text_file_without_permissions",
    "exec_timeout_kills_child_processes",
    "exec_permission_error",
    "exec_input_large",
    "cancellation_kills_the_tree",
    "daemons_die_with_the_timeout",
    "fork_bomb_stays_below_the_limit",
    "memory_of_no_process_ends_no_sandbox",
    "enforced_limits_match_a_probe",
    "a_killed_host_leaves_nothing_alive",
    "a_sweep_spares_the_living",
    "parallel_commands_in_many_sandboxes",
    "a_verifiers_files_cannot_be_changed",
    "endless_output_is_capped_and_killed",
    "output_cannot_forge_the_status",
    "directory_variables_and_functions_persist",
    "the_shell_cannot_be_wedged",
    "killing_the_shell_from_inside_is_survived",
    "links_are_resolved_inside",
    "hostile_archives_are_rejected",
    "files_belong_to_the_user_with_their_mode",
}


def among(check, topics):
    return check.run is not None and check.run.__module__ in {topic.__name__ for topic in topics}


def marks_of(target, check):
    if target is not DOCKER:
        return [pytest.mark.soak] if target is C and among(check, OTHERWISE_IN_C) else []
    here = check.name in OF_EACH_OTHER or among(check, IN_DOCKER)
    return [pytest.mark.docker, *([] if here else [pytest.mark.soak])]


CASES = [
    *((B, check) for check in all_checks()),
    *((C, check) for check in all_checks() if among(check, (*IN_C, *OTHERWISE_IN_C))),
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
        pytest.param(target, check, id=id_of(target, check), marks=marks_of(target, check))
        for target, check in CASES
    ],
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
