"""Commands that look like a failure and are none: nothing of it is worth a diagnosis in `code_debug`."""

import pytest

from environments.rewards.reward_context import RolloutContext
from environments.rewards.verdict.code_judge import CheckLimits, calls_fail, note_calls
from environments.shipped.code_debug.env import load_tasks, workspace_files

TASK = next(task for task in load_tasks() if task["entry_point"] == "moving_average")
TRACE = 'File "/workspace/solution.py", line 3, in moving_average\\nIndexError'
IMPORT = "from solution import moving_average"
FAKES = {
    "grep": "grep -n def *.py; false",
    "a traceback echoed": f"printf 'Traceback\\n  {TRACE}\\n'; exit 1",
    "a program that prints one": f"python3 -c \"import sys; sys.stderr.write('''{TRACE}'''); sys.exit(1)\"",
    "a function of its own": "mkdir own; cd own; "
    "echo 'def moving_average(*a): return a[9]' >solution.py; "
    f"python3 -c '{IMPORT}; moving_average([1.0, 2.0], 2)'",
    "a broken solution, put back": "cp solution.py kept; echo 'def moving_average(*a): 1 / 0' >solution.py; "
    "python3 test_example.py; cp kept solution.py",
    "a patched function": f"python3 -c '{IMPORT}\nimport solution\n"
    "solution.moving_average = lambda *a: 1 / 0\nsolution.moving_average([1.0, 2.0], 2)'",
    "a hang of its own": "timeout 1 python3 -c 'while True: pass' solution.py",
    "the observer killed": "kill -9 -1",
    "notes without knowledge": "for f in .*/calls; do echo \"('called', ([1.0, 2.0], 2), {})\" >>$f; "
    "echo \"('raised', 'IndexError')\" >>$f; done",
    "notes that are a program": "for f in .*/calls; do "
    "echo \"('called', (__import__('os')._exit(0),), {})\" >>$f; done",
}


@pytest.fixture(autouse=True)
async def _workspace(ctx):
    for name, text in workspace_files(TASK).items():
        await ctx.sandbox.write_file(name, text.encode())


async def shown(ctx: RolloutContext, *commands: str) -> bool:
    workspace = ctx.sandbox.workdir
    rerun = await note_calls(
        ctx.verify, TASK, commands, workspace=workspace, limits=CheckLimits(), total_s=20.0
    )
    return bool(rerun.notes) and await calls_fail(ctx.verify, TASK, rerun.notes, CheckLimits())


@pytest.mark.parametrize("command", FAKES.values(), ids=FAKES)
async def test_a_fake_shows_no_failure(ctx, command: str):
    assert not await shown(ctx, command)


async def test_files_left_in_the_workspace_forge_nothing(ctx):
    for name in ("sitecustomize.py", "json.py", "ast.py", "environments/rewards/verdict/observer.py"):
        await ctx.sandbox.write_file(name, b"print('shown')\nraise SystemExit(0)\n")
    await ctx.sandbox.write_file("test_example.py", b"raise IndexError\n")
    assert not await shown(ctx, "python3 test_example.py")


async def test_modules_left_in_the_workspace_are_not_imported_by_the_observer(ctx):
    for name in ("json.py", "contextlib.py", "environments/__init__.py", "tools/sandbox/__init__.py"):
        await ctx.sandbox.write_file(name, b"raise SystemExit(1)\n")
    assert await shown(ctx, "python3 test_example.py")


async def test_a_solution_that_is_a_folder_or_a_link_in_the_way_is_no_error(ctx):
    await ctx.sandbox.exec("rm solution.py; mkdir solution.py; touch solution.py/x")
    assert not await shown(ctx, "python3 -c 'import solution'")
