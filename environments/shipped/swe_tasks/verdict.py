"""The tests of a row that pass with a patch, in a fresh sandbox with the verifier's test files."""

import asyncio
import base64
import json
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any, cast

from environments.rewards.verdict.frame import (
    Control,
    NoVerdict,
    Verify,
    decide,
    fresh_machine,
    run_program,
)
from environments.shipped.swe_tasks.patches import Tree, apply_patch, file_of, patch_between
from tools.errors import AgentCausedError, ConfigError, DatasetError, SandboxUnavailable
from tools.sandbox.archive import ArchivedFile

Row = Mapping[str, Any]
"""A row with the columns of SWE-bench."""

MAX_PATCH_BYTES = 8 << 20
SUSPICIOUS = re.compile(
    rb"^\+.*(_getframe|f_back|f_locals|gc\.get_|/proc/|ctypes|os\._exit|getppid|runtestprotocol"
    rb"|__eq__\s*=\s*lambda)|^\+\s*def __eq__\(.*:\s*(\n\+\s*)?return True",
    re.MULTILINE,
)
"""Patterns of code that inspects the test that runs it."""
_LONGEST_PATH = 1024
_SETTINGS = (
    "conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "pyproject.toml", "tox.ini",
    "setup.cfg",
)  # fmt: skip
_TEST_FILES = (
    *_SETTINGS, "test_*.py", "*_test.py", "tests.py", "sitecustomize.py", "usercustomize.py", "*.pth", "*.pyc"
)  # fmt: skip
TEST_S = 60.0
_EXIT_S = 15.0
_RUNNER = ".verifier/test_runner.py"


def tests_of(row: Row, *columns: str) -> list[str]:
    found: list[str] = []
    for column in columns or ("FAIL_TO_PASS", "PASS_TO_PASS"):
        given = row.get(column)
        try:
            tests: Any = json.loads(given) if isinstance(given, str) else given or []
        except ValueError:
            tests = None
        is_list = isinstance(tests, list) and all(isinstance(each, str) for each in cast("list[Any]", tests))
        if not is_list or not (tests or column == "PASS_TO_PASS"):
            raise DatasetError(
                f"{column} is {given!r:.100}; give a list of test ids, such as tests/test_x.py::test_y"
            )
        found += tests
    return list(dict.fromkeys(found))


def patch_of_code(row: Row, base: Tree, found: Tree) -> bytes:
    folders = {PurePosixPath(test.partition("::")[0]).parent.name for test in tests_of(row)}
    own = {"tests", *folders.intersection(("test", "testing"))}

    def is_code(path: str) -> bool:
        *above, name = path.lower().split("/")
        is_own = not own.isdisjoint(above) or any(fnmatch(name, each) for each in _TEST_FILES)
        return not is_own and ".git" not in (*above, name) and len(path) <= _LONGEST_PATH

    before = {path: file for path, file in base.items() if is_code(path)}
    after = {path: file_of(file.data, file.mode) for path, file in found.items() if is_code(path)}
    size = sum(len(file.data) for path, file in after.items() if before.get(path) != file)
    if size > MAX_PATCH_BYTES:
        reason = f"files of {size} bytes were changed, and no patch has more than {MAX_PATCH_BYTES}"
        raise AgentCausedError(reason, cause="unreadable_files")
    try:
        patch = patch_between(before, after)
        apply_patch(base, patch)
    except DatasetError as error:
        reason = f"what was changed makes no patch: {error}"
        raise AgentCausedError(reason, cause="unreadable_files") from error
    return patch


async def find_passing(  # noqa: PLR0913  # one verdict
    verify: Verify,
    row: Row,
    tests: Sequence[str],
    base: Tree,
    patch: bytes,
    control: Control,
    *,
    timeout_s: float,
) -> frozenset[str]:
    """Return the tests that pass with a patch of code alone.

    Test files of the row replace those of the patch. `control` is shared by all verdicts over these tests.
    """
    own = await asyncio.to_thread(_files_of_tests, row, base)
    files = {path: file.data for path, file in own.items() if file}
    files[_RUNNER] = Path(__file__).with_name("test_runner.py").read_bytes()

    async def run(patch: bytes) -> frozenset[str]:
        """Apply a patch in a fresh sandbox and return the tests that pass there."""
        patched = await asyncio.to_thread(apply_patch, base, patch)
        changed = {path: file for path, file in patched.items() if path not in own}
        request = {
            "tests": tests,
            "test_s": TEST_S,
            # Below the limit of the program, which is below that of `verify`, so that no output is lost.
            "total_s": max(timeout_s - 2 * _EXIT_S, timeout_s / 2),
            "deleted": [path for path, file in (*changed.items(), *own.items()) if file is None],
            "written": {
                path: (base64.b64encode(file.data).decode(), file.mode)
                for path, file in changed.items()
                if file
            },
        }
        limit_s = max(timeout_s - _EXIT_S, timeout_s * 0.75)
        with fresh_machine():
            report = await run_program(verify, ["python3", "-I", _RUNNER], request, files, timeout_s=limit_s)
        if not report.ready:
            name, reason = row["instance_id"], report.reason.rpartition("\n")[2]
            if report.result.exit_code in (1, 127):
                need = f"the tests of {name} need python3 with pytest in the sandbox"
                raise ConfigError(f"{need}: {reason:.300}")
            raise SandboxUnavailable(f"no test of {name} began: {reason:.300}")
        if report.end is None:
            raise NoVerdict("the runner did not finish")
        # Numbers of a forged report may be out of range.
        return frozenset(test for index, test in enumerate(tests) if index in set(report.end))

    return await decide(lambda: run(patch), lambda: run(b""), control)


def _files_of_tests(row: Row, base: Tree) -> dict[str, ArchivedFile | None]:
    named = {test.partition("::")[0] for test in tests_of(row)}
    kept = {
        path: file for path, file in base.items() if path in named or PurePosixPath(path).name in _SETTINGS
    }
    try:
        return {**kept, **apply_patch(base, str(row.get("test_patch") or "").encode())}
    except DatasetError as error:
        raise DatasetError(f"the test_patch of {row['instance_id']} does not apply, {error}") from None
