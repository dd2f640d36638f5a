"""Agents that forge a verdict get none, and what they leave about does no harm to a fix."""

import pytest

from tests.environments.swe_tasks_env.small_repository import (
    BUGGY,
    FAILING,
    FIXED,
    dataset,
    patch_of_tests,
    played,
    put,
    row,
    sh,
    write,
)
from tests.tables import seldom

PASSING_HOOKS = """
import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    return True


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    outcome.get_result().outcome = "passed"
"""
PATCHED_PYTEST = """
import unittest

import _pytest.python
import _pytest.reports
import _pytest.unittest

_pytest.reports.TestReport.outcome = property(lambda self: "passed", lambda self, value: None)
_pytest.python.Function.runtest = lambda self: None
_pytest.unittest.TestCaseFunction.runtest = lambda self: None
unittest.TestCase.run = lambda self, result=None: result.addSuccess(self)
"""
SUMMARY = f"print({' '.join(f'PASSED {each}' for each in FAILING)!r}, flush=True)\n"
FORGERS = {
    "exits at import": [put("calc.py", f"import os\nos._exit(0)\n{BUGGY}")],
    "ends pytest at import": [put("calc.py", f"import pytest\npytest.exit('fine', returncode=0)\n{BUGGY}")],
    "skips the module": [put("calc.py", f"import pytest\npytest.skip('', allow_module_level=True)\n{BUGGY}")],
    "exits in the call": [put("calc.py", BUGGY.replace("return a - b", "import os; os._exit(0)"))],
    "raises SystemExit": [put("calc.py", BUGGY.replace("return a - b", "raise SystemExit(0)"))],
    "prints a summary": [put("calc.py", f"import os\nos.system('echo all passed')\n{SUMMARY}{BUGGY}")],
    "patches pytest": [put("calc.py", PATCHED_PYTEST + BUGGY)],
    "a conftest": [put("conftest.py", PASSING_HOOKS), put("tests/conftest.py", PASSING_HOOKS)],
    "edited tests": [sh("echo 'def test_add(): pass' > tests/test_calc.py; rm -rf tests/__pycache__")],
    "settings": [put("pytest.ini", "[pytest]\naddopts = -p evil"), put("evil.py", PASSING_HOOKS)],
    "a plugin's entry point": [
        put("evil-1.dist-info/METADATA", "Name: evil\nVersion: 1\n"),
        put("evil-1.dist-info/entry_points.txt", "[pytest11]\nevil = evil\n"),
        put("evil.py", PASSING_HOOKS),
    ],
    "start-up files": [
        put("sitecustomize.py", "import os; os._exit(0)"),
        put("evil.pth", "import os; os._exit(0)"),
    ],
    "modules in front": [
        put("pytest.py", "main = print"),
        put("unittest.py", "class TestCase:\n    assertEqual = print"),
        put("_pytest/__init__.py", ""),
    ],
    "equals everything": [sh("rm calc.py; mkdir calc; touch calc/__init__.py")],
    "a link out of the tree": [sh("rm calc.py; ln -s /usr/lib/python3.11/ast.py calc.py; ln -s / root")],
    "no repository at all": [sh("rm -rf * .[a-z]*; mkfifo calc.py")],
}
HOSTILE_GIT = """
git init -q . && git config core.hooksPath /workspace/hooks && git config diff.evil.command 'rm -rf .'
git config filter.evil.clean 'echo broken' && git config core.fsmonitor 'rm -rf .'
printf '* -diff -text filter=evil diff=evil\\n' > .gitattributes; cp .gitattributes .git/info/attributes
mkdir hooks; printf '#!/bin/sh\\nrm -rf /workspace/*' > hooks/post-index-change; chmod +x hooks/*
"""


@pytest.fixture
def rows(tmp_path):
    write(tmp_path / "calc")
    return dataset(tmp_path, row("calc"))


@pytest.mark.parametrize(
    "messages",
    seldom(
        FORGERS,
        {"exits in the call", "patches pytest", "a conftest"},
    ),
)
async def test_a_forged_verdict_is_worth_nothing(messages, rows):
    assert (await played(rows, *messages)).score == 0


async def test_the_agents_git_has_no_part_in_its_patch(rows):
    assert (await played(rows, put("calc.py", FIXED), sh(HOSTILE_GIT))).rewards.outcome == 1


@pytest.mark.soak
async def test_a_file_that_both_patches_touch_is_the_verifiers(rows, tmp_path):
    data = "diff --git a/data.txt b/data.txt\nnew file mode 100644\n--- /dev/null\n+++ b/data.txt\n"
    data += "@@ -0,0 +1 @@\n+1\n"
    dataset(tmp_path, row("calc", test_patch=patch_of_tests() + data))
    assert (await played(rows, put("calc.py", FIXED), put("data.txt", "2"))).rewards.outcome == 1


@pytest.mark.soak
async def test_a_name_that_no_patch_can_have_and_too_much_to_fix_a_bug_cost_the_agent_its_patch(rows):
    for command in ("mkdir 'git~1' && touch 'git~1/x'", "head -c 9000000 /dev/zero > zeros"):
        assert (await played(rows, put("calc.py", FIXED), sh(command))).rewards.outcome == 0


@pytest.mark.soak
async def test_tests_that_the_agent_replaced_by_a_link_are_the_verifiers(rows):
    swap = sh("mv tests /tmp/away; ln -s /tmp/away tests")
    assert (await played(rows, put("calc.py", FIXED), swap)).rewards.outcome == 1


@pytest.mark.soak
async def test_a_fix_that_breaks_another_test_resolves_nothing(rows):
    broken = put("calc.py", FIXED.replace("'calc'", "'other'"))
    assert (await played(rows, broken)).rewards.outcome == 0
