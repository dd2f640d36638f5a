"""Which tests of a row pass with a patch: in a fresh sandbox, among the verifier's own files."""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import PurePosixPath
from typing import Any, cast

from environments.rewards.verdict.frame import Control, Verify, decide
from environments.rewards.verdict.repository_tests import run_tests
from environments.shipped.swe_tasks.patches import Tree, file_of, patch_between, patched_files
from tools.errors import AgentCausedError, DatasetError
from tools.sandbox.archive import ArchivedFile

Row = Mapping[str, Any]
"""As SWE-bench has them."""

MAX_PATCH_BYTES = 8 << 20
"""Of the files that a patch changes: nobody fixes a bug with more."""
SUSPICIOUS = re.compile(
    rb"^\+.*(_getframe|f_back|f_locals|gc\.get_|/proc/|ctypes|os\._exit|getppid|runtestprotocol"
    rb"|__eq__\s*=\s*lambda)|^\+\s*def __eq__\(.*:\s*(\n\+\s*)?return True",
    re.MULTILINE,
)
"""Patterns in a patch that suggest that its code inspects the test that runs it."""
_LONGEST_PATH = 1024
"""This machine could not write those that are as long as a sandbox allows."""
_SETTINGS = (
    "conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "pyproject.toml", "tox.ini",
    "setup.cfg",
)  # fmt: skip
_OF_TESTS = (
    *_SETTINGS, "test_*.py", "*_test.py", "tests.py", "sitecustomize.py", "usercustomize.py", "*.pth", "*.pyc"
)  # fmt: skip


def tests_of(row: Row, *columns: str) -> list[str]:
    """The ids of tests in columns, each a list or its JSON text.

    Raises:
        DatasetError: one is something else; or `FAIL_TO_PASS` is empty, and nothing would be judged.
    """
    found: list[str] = []
    for column in columns:
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
    return found


def all_tests(row: Row) -> list[str]:
    return tests_of(row, "FAIL_TO_PASS", "PASS_TO_PASS")


def patch_of_code(row: Row, base: Tree, found: Tree) -> bytes:
    """The difference of two trees but for tests and their settings.

    Raises:
        AgentCausedError: it is too large to be a patch, or has names that none can have.
    """
    folders = {PurePosixPath(test.partition("::")[0]).parent.name for test in all_tests(row)}
    own = {"tests", *folders.intersection(("test", "testing"))}

    def is_code(path: str) -> bool:
        *above, name = path.lower().split("/")
        is_own = not own.isdisjoint(above) or any(fnmatch(name, each) for each in _OF_TESTS)
        return not is_own and ".git" not in (*above, name) and len(path) <= _LONGEST_PATH

    before = {path: file for path, file in base.items() if is_code(path)}
    after = {path: file_of(file.data, file.mode) for path, file in found.items() if is_code(path)}
    size = sum(len(file.data) for path, file in after.items() if before.get(path) != file)
    if size > MAX_PATCH_BYTES:
        reason = f"files of {size} bytes were changed, and no patch has more than {MAX_PATCH_BYTES}"
        raise AgentCausedError(reason, cause="unreadable_files")
    try:
        patch = patch_between(before, after)
        patched_files(base, patch)
    except DatasetError as error:
        reason = f"what was changed makes no patch: {error}"
        raise AgentCausedError(reason, cause="unreadable_files") from error
    return patch


async def passing_tests(  # noqa: PLR0913  # one verdict
    verify: Verify,
    row: Row,
    tests: Sequence[str],
    base: Tree,
    patch: bytes,
    control: Control,
    *,
    timeout_s: float,
) -> frozenset[str]:
    """Return those of the tests that pass with a patch.

    Args:
        verify: as `ctx.verify`, in sandboxes that begin with the repository.
        row: whose test files win over the patch's.
        tests: to be run, by their ids.
        base: the repository.
        patch: of code alone, as `patch_of_code` makes it.
        control: of all verdicts over these tests.
        timeout_s: wall clock of all.

    Raises:
        AgentCausedError: the runner comes to its end without the patch alone.
        ConfigError: the sandbox has no pytest.
        SandboxError: the runner comes to no end without the patch either, or no test begins.
    """
    own = await asyncio.to_thread(_files_of_tests, row, base)

    async def run(patch: bytes) -> frozenset[str]:
        changed = await asyncio.to_thread(patched_files, base, patch)
        name = str(row["instance_id"])
        return await run_tests(verify, name, tests, changed=changed, held=own, timeout_s=timeout_s)

    return await decide(lambda: run(patch), lambda: run(b""), control)


def _files_of_tests(row: Row, base: Tree) -> dict[str, ArchivedFile | None]:
    """What tests are read from and set by; `None`: gone with the row's own patch."""
    named = {test.partition("::")[0] for test in all_tests(row)}
    kept = {
        path: file for path, file in base.items() if path in named or PurePosixPath(path).name in _SETTINGS
    }
    try:
        return {**kept, **patched_files(base, str(row.get("test_patch") or "").encode())}
    except DatasetError as error:
        raise DatasetError(f"the test_patch of {row['instance_id']} does not apply, {error}") from None
