"""Agents that forge a verdict get none, and what they leave about does no harm to a fix."""

import json

import pytest

from environments.rewards.verdict.frame import Control
from environments.shipped.swe_tasks.patches import patch_between
from environments.shipped.swe_tasks.verdict import SUSPICIOUS, find_passing
from tests.environments.shipped.swe_tasks.small_repository import (
    BUGGY,
    FAILING,
    FILES,
    FIXED,
    dataset,
    patch_of_tests,
    played,
    put,
    row,
    sh,
    write,
)
from tests.tables import cases, seldom
from tools.errors import AgentCausedError, SandboxError
from tools.sandbox.archive import ArchivedFile
from tools.sandbox.base import ExecResult

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
FRAMES = """
import os, re, sys
def search():
    found, frame = [], sys._getframe()
    while frame:
        found += [*frame.f_locals.values(), *frame.f_globals.values()]
        frame = frame.f_back
    for word in set(re.findall("[0-9a-f]{32}", repr(found))):
        for number in range(64):
            try:
                os.write(number, word.encode() + b"\\n")
            except OSError:
                pass
"""
MEMORY = """
import os, re
def search():
    for pid in ("self", os.getppid(), *filter(str.isdigit, os.listdir("/proc"))):
        try:
            with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb") as memory:
                for start, end in re.findall(r"([0-9a-f]+)-([0-9a-f]+) rw", maps.read()):
                    memory.seek(int(start, 16))
                    read = memory.read(min(int(end, 16) - int(start, 16), 1 << 24))
                    for word in set(re.findall(rb"[0-9a-f]{32}", read)):
                        for number in range(32):
                            try:
                                os.write(number, word + b"\\n")
                            except OSError:
                                pass
        except (OSError, ValueError, OverflowError):
            pass
"""
SPRAYS = """
import os
def search():
    for number in range(3, 64):
        try:
            os.write(number, b"".join(b"passed %d\\n" % each for each in range(9)))
        except OSError:
            pass
"""
KILLS = "import os\ndef search():\n    os.kill(os.getppid(), {})\n"
KILLS_ALL = """
import os
def search():
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            pid == os.getpid() or os.kill(pid, 9)
        except OSError:
            pass
"""


def in_the_call(code):
    return [put("calc.py", code + BUGGY.replace("return a - b", "search(); return a - b"))]


SUMMARY = f"print({' '.join(f'PASSED {each}' for each in FAILING)!r}, flush=True)\n"
FORGERS = {
    "exits at import": [put("calc.py", f"import os\nos._exit(0)\n{BUGGY}")],
    "ends pytest at import": [put("calc.py", f"import pytest\npytest.exit('fine', returncode=0)\n{BUGGY}")],
    "skips the module": [put("calc.py", f"import pytest\npytest.skip('', allow_module_level=True)\n{BUGGY}")],
    "exits in the call": [put("calc.py", BUGGY.replace("return a - b", "import os; os._exit(0)"))],
    "raises SystemExit": [put("calc.py", BUGGY.replace("return a - b", "raise SystemExit(0)"))],
    "prints a summary": [put("calc.py", f"import os\nos.system('echo all passed')\n{SUMMARY}{BUGGY}")],
    "patches pytest": [put("calc.py", PATCHED_PYTEST + BUGGY)],
    "searches frames for words": in_the_call(FRAMES),
    "searches memory for words": in_the_call(MEMORY),
    "reports what was not asked": in_the_call(SPRAYS),
    "kills its runner": in_the_call(KILLS.format(9)),
    "kills all that it can": in_the_call(KILLS_ALL),
    "ends the runner at import": [put("calc.py", f"import os\nos.kill(os.getppid(), 9)\n{BUGGY}")],
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
        {
            "exits in the call",
            "patches pytest",
            "a conftest",
            "searches frames for words",
            "reports what was not asked",
            "ends the runner at import",
        },
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


@cases(
    "code",
    [
        "import sys\nsys._getframe()\n",
        "import gc\ngc.get_objects()\n",
        "open('/proc/self/mem')\n",
        "import ctypes\n",
        "import os\nif 0: os._exit(0)\n",
        "class A:\n    def __eq__(self, other): return True\n",
        "class A:\n    def __eq__(self, other):\n        return True\n",
        "class A:\n    __eq__ = lambda *_: True\n",
    ],
)
def test_signs_of_code_that_looks_for_its_test_are_seen_in_a_patch(code):
    before = tree(BUGGY)
    assert SUSPICIOUS.search(patch_between(before, tree(code + FIXED)))
    assert not SUSPICIOUS.search(patch_between(before, tree(FIXED)))
    assert not SUSPICIOUS.search(patch_between(tree(code + BUGGY), tree(code + FIXED)))


async def test_a_metric_counts_patches_with_such_signs(rows):
    looks, fixes = put("calc.py", f"import ctypes\n{FIXED}"), put("calc.py", FIXED)
    assert [(await played(rows, each)).metrics["suspicious_patch"] for each in (looks, fixes)] == [1, 0]


READY, END = "ready", "end"


class Verdicts:
    """`ctx.verify` whose runs end as given; the lines of a run that ends are printed."""

    def __init__(self, *ends):
        self.ends, self.patched = iter(ends), []

    async def __call__(self, *, stdin, **_):
        request = json.loads(stdin)
        self.patched.append(bool(request["written"]))
        said = next(self.ends)
        if isinstance(said, AgentCausedError):
            raise said
        passed = [FAILING.index(word) for word in said if word in FAILING]
        lines = {READY: "ready null", END: f"end {passed}"}
        text = "\n".join(f"{request['nonce']} {lines[word]}" for word in said if word in lines).encode()
        return ExecResult(
            exit_code=137, stdout=text, stderr=b"", stdout_total=0, stderr_total=0, timed_out=True
        )

    async def passing(self):
        item, base = row("calc"), tree(BUGGY, FILES["tests/test_calc.py"])
        patch = patch_between(tree(BUGGY), tree(FIXED))
        return await find_passing(self, item, FAILING, base, patch, Control(), timeout_s=9)


def tree(code, test=None):
    files = {"calc.py": code} | ({"tests/test_calc.py": test} if test else {})
    return {path: ArchivedFile(data=text.encode()) for path, text in files.items()}


async def test_a_sandbox_in_which_no_test_began_gives_no_verdict():
    verdicts = Verdicts([], [])
    with pytest.raises(SandboxError, match="no test of calc-1 began"):
        await verdicts.passing()
    assert verdicts.patched == [True, True]


async def test_a_runner_that_ends_without_the_patch_alone_was_ended_by_it():
    verdicts = Verdicts([READY], [READY, *FAILING], [READY, END])
    with pytest.raises(AgentCausedError) as caught:
        await verdicts.passing()
    assert (caught.value.cause, verdicts.patched) == ("no_verdict", [True, True, False])


async def test_a_runner_that_ends_nowhere_was_not_ended_by_the_patch():
    with pytest.raises(SandboxError, match="nor over the clean image"):
        await Verdicts([READY], [READY], [READY]).passing()


async def test_a_sandbox_that_is_lost_beside_a_patch_alone_was_lost_by_it():
    lost = AgentCausedError("memory", cause="sandbox_lost")
    with pytest.raises(AgentCausedError) as caught:
        await Verdicts(lost, lost, [READY, END]).passing()
    assert caught.value.cause == "no_verdict"
    with pytest.raises(SandboxError):
        await Verdicts(lost, lost, lost).passing()


async def test_a_runner_that_ends_the_second_time_has_judged():
    assert await Verdicts([], [READY, FAILING[0], END]).passing() == {FAILING[0]}


@cases(
    "command",
    [
        "for i in $(seq 60); do truncate -s 4M $i; done",
        "mkdir d; cd d; seq 10500 | xargs touch",
        "mkdir 'git~1' && touch 'git~1/x'",
        "head -c 9000000 /dev/zero > zeros",
    ],
)
async def test_files_that_make_no_patch_are_the_agents_doing(command, rows):
    trajectory = await played(rows, put("calc.py", FIXED), sh(command), verify_every=0)
    assert trajectory.agent_caused.cause == "unreadable_files"


async def test_what_a_later_turn_takes_away_does_no_harm(rows):
    commands = sh("truncate -s 100M big"), put("calc.py", FIXED), sh("rm big")
    trajectory = await played(rows, *commands)
    assert (trajectory.rewards.turns, trajectory.rewards.outcome) == ((None, None, 0.5, 0), 1)


@pytest.mark.soak
async def test_tests_that_the_agent_replaced_by_a_link_are_the_verifiers(rows):
    swap = sh("mv tests /tmp/away; ln -s /tmp/away tests")
    assert (await played(rows, put("calc.py", FIXED), swap)).rewards.outcome == 1


@pytest.mark.soak
async def test_a_fix_that_breaks_another_test_resolves_nothing(rows):
    broken = put("calc.py", FIXED.replace("'calc'", "'other'"))
    assert (await played(rows, broken)).rewards.outcome == 0
