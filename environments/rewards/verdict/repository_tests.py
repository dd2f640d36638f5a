"""Which tests of a repository pass with changed files: `test_runner.py` runs them in a fresh sandbox."""

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path

from environments.rewards.verdict.frame import NoVerdict, Verify, fresh_machine, run_program
from tools.errors import ConfigError, SandboxUnavailable
from tools.sandbox.archive import ArchivedFile

TEST_S = 60.0
"""Wall clock of one test."""
_TO_END_S = 15.0
_RUNNER = ".verifier/test_runner.py"


async def run_tests(  # one run, all of it by keyword
    verify: Verify,
    name: str,
    tests: Sequence[str],
    *,
    changed: Mapping[str, ArchivedFile | None],
    held: Mapping[str, ArchivedFile | None],
    timeout_s: float,
) -> frozenset[str]:
    """Return those of the tests that pass.

    Args:
        verify: as `ctx.verify`, in sandboxes that begin with the repository.
        name: of the task, for messages.
        tests: to be run, by their ids.
        changed: files that may be the agent's; `None`: gone.
        held: the verifier's own, which win over them.
        timeout_s: wall clock of all.

    Raises:
        NoVerdict: the runner did not come to its end, or its sandbox was lost with it.
        ConfigError: the sandbox has no pytest.
        SandboxUnavailable: no test began.
    """
    changed = {path: file for path, file in changed.items() if path not in held}
    request = {
        "tests": tests,
        "test_s": TEST_S,
        # The runner ends before it is ended, and that before its output would be lost.
        "total_s": max(timeout_s - 2 * _TO_END_S, timeout_s / 2),
        "deleted": [path for path, file in (*changed.items(), *held.items()) if file is None],
        "written": {
            path: (base64.b64encode(file.data).decode(), file.mode) for path, file in changed.items() if file
        },
    }
    files = {path: file.data for path, file in held.items() if file}
    files[_RUNNER] = Path(__file__).with_name("test_runner.py").read_bytes()
    limit_s = max(timeout_s - _TO_END_S, timeout_s * 0.75)
    with fresh_machine():
        report = await run_program(verify, ["python3", "-I", _RUNNER], request, files, timeout_s=limit_s)
    if not report.ready:
        reason = report.reason.rpartition("\n")[2]
        if report.result.exit_code in (1, 127):
            raise ConfigError(f"the tests of {name} need python3 with pytest in the sandbox: {reason:.300}")
        raise SandboxUnavailable(f"no test of {name} began: {reason:.300}")
    if report.end is None:
        raise NoVerdict("the runner did not come to its end")
    passed = frozenset(report.end)
    return frozenset(test for index, test in enumerate(tests) if index in passed)
