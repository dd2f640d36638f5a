import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from environments.rewards.verdict.code_judge import CheckLimits, CodeJudge
from environments.shipped.code_debug import CodeDebugEnv
from environments.shipped.code_debug.env import CodeDebugConfig
from tools.errors import DatasetError
from tools.sandbox import open_sandbox
from tools.sandbox.base import ExecResult

NOTHING = ExecResult(exit_code=0, stdout=b"", stderr=b"", stdout_total=0, stderr_total=0)

SOUND = {
    "task_id": "sound",
    "prompt": "def double(x):\n",
    "declaration": "def double(x):\n",
    "canonical_solution": "    return 2 * x\n",
    "buggy_solution": "    return x + 2\n",
    "entry_point": "double",
    "test": "assert double(2) == 4\nassert double(3) == 6",
}
UNSOLVABLE = {
    "its own solution is wrong": {"canonical_solution": "    return x\n"},
    "its own solution is no Python": {"canonical_solution": "    return (\n"},
    "its own solution hangs": {"canonical_solution": "    import time; time.sleep(100)\n"},
    "its own solution dies": {"canonical_solution": "    import os; os._exit(0)\n"},
    "its own solution leaves": {"canonical_solution": "    raise SystemExit(0)\n"},
    "a check that is never reached": {"test": "assert double(2) == 4\nif 0:\n    assert double(3) == 6"},
    "a test that needs what is not there": {"test": "import no_such_module\nassert double(2) == 4"},
    "a test that is no Python": {"test": "assert ("},
    "a test without a check": {"test": "double(2)"},
    "no plain data": {"canonical_solution": "    return object()\n"},
    "no such function": {"entry_point": "triple"},
}


async def judged(*rows: dict[str, str]) -> tuple[CodeJudge, list[str], list[str]]:
    """The judge, the indices of the rows that are left, and its lines."""
    judge, lines = CodeJudge(), list[str]()
    tasks = {str(index): row for index, row in enumerate(rows)}
    kept = await judge.sound_items(tasks, lambda: open_sandbox("local"), "drop", lines.append)
    return judge, [*kept], lines


async def test_what_cannot_be_solved_is_found_among_others():
    rows = [row for change in UNSOLVABLE.values() for row in (SOUND, {**SOUND, **change})]
    _, kept, lines = await judged(*rows, SOUND)
    assert kept == [str(index) for index in range(0, len(rows) + 1, 2)]
    assert lines[-1].startswith(f"{len(UNSOLVABLE)} of {len(rows) + 1} items cannot be judged (drop): 1: its")


async def test_a_row_whose_test_does_not_end_is_named():
    _, kept, lines = await judged({**SOUND, "test": "while True: pass\nassert double(2) == 4"}, SOUND)
    assert (kept, lines[-1]) == (["1"], "1 of 2 items cannot be judged (drop): 0: its test does not end")


async def test_a_slow_right_solution_widens_the_limits_of_its_task():
    busy = "    import time\n    end = time.process_time() + 0.1\n    while time.process_time() < end: pass\n"
    slow = {**SOUND, "task_id": "slow", "canonical_solution": f"{busy}    return 2 * x\n"}
    judge, kept, _ = await judged(SOUND, slow)
    assert (kept, judge.learned_limits["sound"]) == (["0", "1"], CheckLimits())
    assert judge.learned_limits["slow"].cpu_s >= 1.0


@pytest.fixture
def dataset(tmp_path: Path) -> str:
    rows = [
        SOUND,
        {**SOUND, "task_id": "wrong", "canonical_solution": "    return x\n"},
        {**SOUND, "task_id": "solved", "buggy_solution": "    return x * 2\n"},
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(tmp_path / "rows.jsonl")


async def opened(dataset: str, **settings: str) -> tuple[list[str], list[str]]:
    """The ids of what is rolled out, and what was said."""
    lines: list[str] = []
    env = CodeDebugEnv(CodeDebugConfig(dataset_path=dataset, **settings))  # pyright: ignore[reportArgumentType]
    async with env.opened(notify=lines.append):
        return [task.item_id for task in env.tasks()], lines


async def test_unsound_items_are_left_out_and_named_in_one_line(dataset: str):
    ids, lines = await opened(dataset)
    assert ids == ["sound"]
    assert lines[-1] == (
        "2 of 3 items cannot be judged (drop): wrong: its own solution fails a check; "
        "solved: the buggy solution holds every check"
    )


async def test_unsound_items_can_be_kept(dataset: str):
    assert (await opened(dataset, unsound_items="keep"))[0] == ["sound", "wrong", "solved"]


async def test_unsound_items_can_be_refused(dataset: str):
    with pytest.raises(DatasetError, match="2 of 3 items cannot be judged"):
        await opened(dataset, unsound_items="refuse")


async def test_the_verdict_of_a_sibling_does_not_wait_for_that_of_another_solution():
    judge, slow_began, never = CodeJudge(), asyncio.Event(), asyncio.Event()

    async def verify(*, stdin=b"", files, **_):
        if files["solution.py"] == b"slow":
            slow_began.set()
            await never.wait()
        nonce = json.loads(stdin)["nonce"]
        return replace(NOTHING, stdout=f"{nonce} ready null\n".encode())

    slow = asyncio.create_task(judge.check(verify, "1", SOUND, b"slow"))
    await slow_began.wait()
    assert (await judge.check(verify, "1", SOUND, b"quick")).hung
    slow.cancel()
