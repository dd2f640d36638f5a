import json
from pathlib import Path

import pytest

from environments.code_debug_env import CodeDebugEnv
from environments.code_debug_env.env import CodeDebugConfig
from environments.code_debug_env.hidden_checks import CheckLimits
from environments.code_debug_env.row_checks import check_rows
from tools.errors import DatasetError
from tools.sandbox import open_sandbox

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


async def report_of(*rows: dict[str, str]):
    return await check_rows(rows, lambda: open_sandbox("local"))


async def test_what_is_as_it_should_be_is_kept():
    assert (await report_of(SOUND)).unsound == frozenset()


async def test_what_nobody_can_solve_is_found_among_others():
    rows = [row for change in UNSOLVABLE.values() for row in (SOUND, {**SOUND, **change})]
    assert (await report_of(*rows, SOUND)).unsolvable == tuple(range(1, len(rows), 2))


async def test_a_slow_right_solution_widens_the_limits_of_its_task():
    slow = "    import time\n    end = time.process_time() + 0.1\n    while time.process_time() < end: pass\n"
    report = await report_of(SOUND, {**SOUND, "canonical_solution": f"{slow}    return 2 * x\n"})
    quick, slow = report.limits
    assert (quick, report.unsound) == (CheckLimits(), frozenset())
    assert slow.cpu_s >= 1.0


async def test_what_is_solved_already_is_found():
    report = await report_of(SOUND, {**SOUND, "buggy_solution": "    return x * 2\n"})
    assert (report.unsolvable, report.solved) == ((), (1,))


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
        "2 of 3 items cannot be judged (drop): their own solution fails a check: wrong; "
        "the buggy solution holds every check: solved"
    )


async def test_unsound_items_can_be_kept(dataset: str):
    assert (await opened(dataset, unsound_items="keep"))[0] == ["sound", "wrong", "solved"]


async def test_unsound_items_can_be_refused(dataset: str):
    with pytest.raises(DatasetError, match="2 of 3 items cannot be judged"):
        await opened(dataset, unsound_items="refuse")
