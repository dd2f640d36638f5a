import math
from functools import partial

import pytest

from environments.rewards.reward_context import RolloutContext
from environments.rewards.verdict.code_judge import CheckLimits, calls_fail, note_calls
from environments.rewards.verdict.harness import NotedCall, Outcome, alike, parse_notes
from environments.shipped.code_debug.env import load_tasks, workspace_files
from tests.tools.sandbox.conftest import tier_c  # noqa: F401  # a fixture
from tools.sandbox import Opening, SandboxLimits, open_sandbox
from tools.sandbox.local.backend import open_local

TASKS = {task["entry_point"]: task for task in load_tasks()}
USE = "from solution import moving_average as f"
SHOWS = {
    "the examples": "python3 test_example.py",
    "the examples in a pipe": "python3 test_example.py 2>&1 | tail -n 1",
    "a wrong value": f"python3 -c '{USE}; print(f([2.0, 4.0, 9.0], 2))'",
    "an assertion": f"python3 -c '{USE}; assert f([2.0, 4.0, 9.0], 2) == [3.0, 6.5]'",
    "a script here": f"python3 - <<'END'\n{USE}\nprint(f([2.0, 4.0, 9.0], 2))\nEND",
    "a script in a file": f"cat >try.py <<'END'\n{USE}\nprint(f([2.0, 4.0, 9.0], width=2))\nEND\n"
    "python3 try.py",
    "a test suite": "python3 -c '\nimport unittest, solution\nclass T(unittest.TestCase):\n"
    "  def test(self): self.assertEqual(solution.moving_average([2.0, 4.0], 2), [3.0])\nunittest.main()'",
    "from elsewhere": f"cd /tmp && PYTHONPATH=$OLDPWD python3 -c '{USE}; f([2.0, 4.0, 9.0], 2)'",
    "from the home": "cd && python3 test_example.py",
    "by the name of the home": "cd / && python3 ~/test_example.py",
    "the text executed": 'python3 -c \'exec(open("solution.py").read())\n'
    "print(moving_average([2.0, 4.0], 2))'",
    "some that pass before": f"python3 -c '{USE}\nfor n in range(300): f([1.0], 1)\nf([2.0, 4.0, 9.0], 2)'",
}


async def shown(entry_point: str, *commands: str, opened=open_sandbox, **files: str) -> bool:
    task = TASKS[entry_point]
    async with opened() as sandbox:
        for name, text in {**workspace_files(task), **files}.items():
            await sandbox.write_file(name, text.encode())
        ctx = RolloutContext(env="code_debug", item_id="t", sandbox=sandbox, fresh_sandbox=opened)
        named = [command.replace("WORKSPACE", sandbox.workdir) for command in commands]
        rerun = await note_calls(ctx.verify, task, named, workspace=sandbox.workdir, limits=CheckLimits())
        return bool(rerun.notes) and await calls_fail(ctx.verify, task, rerun.notes, CheckLimits())


async def test_a_call_that_fails_shows_the_failure(failing):
    assert await failing(SHOWS, lambda command: shown("moving_average", command)) == []


# The first call's process ends while the right solution's process, which ends itself, is called.
BOTH_END = {
    "entry_point": "f",
    "prompt": "import os, threading, time\n",
    "buggy_solution": """
def f(x):
    if x == 1:
        threading.Timer(0.05, os._exit, [0]).start()
    return -x
""",
    "canonical_solution": """
def f(x):
    if x == 2:
        time.sleep(0.2)
        os._exit(0)
    return x
""",
    "declaration": "",
    "task_id": "both end",
}


async def test_both_solutions_are_started_again_after_both_ended(verify):
    # The last call is repeated first; what was noted of the first two is not what the original returns.
    notes = "".join(
        f"('called', ({x},), {{}})\n('returned', {noted})\n" for x, noted in ((3, -3), (2, 0), (1, 0))
    )
    assert await calls_fail(verify, BOTH_END, notes, CheckLimits())


async def test_the_workspace_may_be_called_by_a_name_that_no_other_sandbox_has(tier_c):  # noqa: F811
    def opened():
        return Opening("local", partial(open_local, tier="C"), SandboxLimits(network="full"), {})

    assert await shown("moving_average", "cd / && python3 WORKSPACE/test_example.py", opened=opened)


async def test_hangs_and_other_exceptions_are_failures(failing):
    deep = next(name for name, task in TASKS.items() if task["failure_symptoms"] == "stackoverflow")
    names = {name: name for name in ("binary_search", "parse_port", deep)}
    assert await failing(names, lambda name: shown(name, "python3 test_example.py")) == []


@pytest.mark.soak
async def test_calls_that_hang_leave_time_for_the_next_command_which_may_compute_for_a_while():
    task, call = TASKS["binary_search"], "from solution import binary_search as f; f([1, 3], {})"
    hangs, ends = call.format(3), "import time\nwhile time.process_time() < 3.5: pass\n" + call.format(1)
    commands = [f"python3 -c '{each}'" for each in (hangs, hangs, ends)]
    async with open_sandbox() as sandbox:
        ctx = RolloutContext(env="code_debug", item_id="t", sandbox=sandbox, fresh_sandbox=open_sandbox)
        rerun = await note_calls(
            ctx.verify, task, commands, workspace=sandbox.workdir, limits=CheckLimits(), total_s=100.0
        )
    assert rerun.notes.splitlines()[1:] == [
        "('called', ([1, 3], 3), {})",
        "('called', ([1, 3], 1), {})",
        "('returned', 0)",
    ]


def test_values_are_compared_but_for_rounding():
    same = [(0.3, [1.0, {"a": (0.3,)}], math.nan), (0.1 + 0.2, [1.0, {"a": (0.1 + 0.2,)}], math.nan)]
    assert alike(*same)
    others = [([1], [1, 2]), ([1, 2], (1, 2)), ({1: 2}, {1: 3}), ({1}, {1, 2}), (1, 2)]
    assert [pair for pair in others if alike(*pair)] == []


def test_a_call_without_an_outcome_never_came_back():
    lines = ["('called', (1,), {})", "('returned', 2)", "noise", "('raised', 'X')", "('called', (2,), {})"]
    assert list(parse_notes(lines)) == [
        NotedCall(arguments=lines[0], outcome=Outcome(kind="returned", value=2)),
        NotedCall(arguments=lines[4], outcome=Outcome(kind="lost")),
    ]
