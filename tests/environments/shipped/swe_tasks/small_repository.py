"""A repository of one module with a bug and two tests, and what scripted agents do in it."""

import json
from pathlib import Path

from environments.policy.scripted import call, say
from environments.rollout.items.tasks import GroupTask
from environments.shipped.swe_tasks import SweTasksEnv
from environments.shipped.swe_tasks.env import SweTasksConfig
from tests.environments.written_policy import Written

BUGGY = "def add(a, b):\n    return a - b\n\n\ndef name():\n    return 'calc'\n"
FIXED = BUGGY.replace("a - b", "a + b")
OLD_TEST = "import calc\n\n\ndef test_name():\n    assert calc.name() == 'calc'\n"
NEW_TESTS = """
import unittest

import calc


def test_name():
    assert calc.name() == 'calc'


def test_add():
    assert calc.add(2, 3) == 5


class TestAdd(unittest.TestCase):
    def test_negative(self):
        self.assertEqual(calc.add(-2, 1), -1)
"""
FILES = {"calc.py": BUGGY, "tests/test_calc.py": OLD_TEST}
FAILING = ["tests/test_calc.py::test_add", "tests/test_calc.py::TestAdd::test_negative"]
PASSING = ["tests/test_calc.py::test_name"]


def write(folder: Path, files=FILES) -> Path:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def patch_of_tests() -> str:
    old, new = OLD_TEST.splitlines(), NEW_TESTS.splitlines()
    return "\n".join(
        [
            "diff --git a/tests/test_calc.py b/tests/test_calc.py",
            "--- a/tests/test_calc.py",
            "+++ b/tests/test_calc.py",
            f"@@ -1,{len(old)} +1,{len(new)} @@",
            *(f"-{line}" for line in old),
            *(f"+{line}" for line in new),
            "",
        ]
    )


def row(repo, commit=None, **fields):
    return {
        "instance_id": "calc-1",
        "repo": str(repo),
        "base_commit": commit,
        "problem_statement": "add subtracts.",
        "patch": "",
        "test_patch": patch_of_tests(),
        "FAIL_TO_PASS": json.dumps(FAILING),
        "PASS_TO_PASS": PASSING,
        **fields,
    }


def dataset(folder: Path, *rows) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return path


def sh(command: str):
    return call("terminal", {"command": command})


def put(path: str, text: str):
    return call("write_file", {"path": path, "content": text})


async def played(path: Path, *messages, **settings):
    """The trajectory of an agent that says these messages, and then that it is done."""
    config = SweTasksConfig(dataset_path=str(path), group_size=1, **settings)
    async with SweTasksEnv(config, policy=Written(*messages, say("Done."))) as env:
        task = GroupTask(item=env.items[0], item_id=env.item_ids[0])
        group = await env.rollout_group(task, 1)
    assert group.failures == ()
    return group.trajectories[0]
