"""Solutions and idle agents of whole folders: verdicts, and records that are resumed."""

import io
import os
import re
import signal

import pytest
from rich.console import Console

from environments.shipped.harbor_tasks import HarborTasksEnv
from environments.shipped.harbor_tasks.env import HarborTasksConfig
from tests.environments.shipped.harbor_tasks.task_folders import PASS, write_task, write_terminal_bench
from turnwise.check.solutions import check_solutions
from turnwise.cli.main import main

HELLO = PASS.format("grep -qx hello /app/hello.txt")
SOLVED = {"solution/solve.sh": "echo hello > hello.txt"}


@pytest.fixture
def checked(tmp_path, monkeypatch):
    """Checks the tasks of a folder; returns the items by id, the code and what was said."""
    monkeypatch.chdir(tmp_path)

    async def check(env_cls=HarborTasksEnv):
        def new_env(skill):
            return env_cls(HarborTasksConfig(tasks=tmp_path / "tasks", scripted_skill=skill, eval_rollouts=1))

        said = io.StringIO()
        items, code = await check_solutions(new_env, Console(file=said, width=200))
        return {each.item: each for each in items}, code, said.getvalue()

    return check


def lines_in(tmp_path):
    names = ("check-solution", "check-idle")
    records = [tmp_path / f"runs/harbor_tasks/{name}/record.jsonl" for name in names]
    return [path.read_bytes().count(b"\n") if path.exists() else 0 for path in records]


async def test_each_item_has_a_verdict_with_its_reason(tmp_path, checked):
    tasks = tmp_path / "tasks"
    write_task(tasks, "good", SOLVED, test=HELLO)
    write_task(tasks, "given", SOLVED, test=PASS.format("true"))
    write_task(tasks, "wrong", {"solution/solve.sh": "cp gone ."}, test=HELLO)
    write_task(tasks, "none", {}, test=PASS.format("false"))
    write_task(tasks, "broken", {}, test="exit 127")
    write_task(tasks, "steps", {}, test="true", toml="[[steps]]")
    found, code, _ = await checked()
    assert code == 0
    assert {name: each.verdict for name, each in found.items()} == {
        "good": "right", "given": "given", "wrong": "unsolved", "none": "unsolved", "broken": "broken",
        "steps": "left out",
    }  # fmt: skip
    assert found["given"].reason == "an agent that does nothing scores 1"
    assert found["wrong"].reason.startswith("its own solution scores 0")
    assert "cannot stat 'gone'" in found["wrong"].reason
    assert found["none"].reason == "its own solution scores 0: it has none"
    assert found["broken"].reason.startswith(
        "its own solution broke: SandboxError: the tests give no verdict"
    )


def test_a_folder_that_is_left_out_is_named_once(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    write_task(tmp_path / "tasks", "good", SOLVED, test=HELLO)
    for name in ("unread", "unread2"):
        write_task(tmp_path / "tasks", name, {}, test="true", toml="version = [")
    write_task(tmp_path / "tasks", "staged", {}, test="true", toml="[[steps]]")
    write_terminal_bench(tmp_path / "tasks", "untested", {"run-tests.sh": None})
    assert main(["check", "harbor_tasks", "--env.tasks", "tasks"]) == 1
    said = "".join(capfd.readouterr())
    assert "1 right; 4 left out" in said
    names = ("unread", "unread2", "staged", "untested")
    assert [len(re.findall(rf"\b{name}\b", said)) for name in names] == [1, 1, 1, 1]


async def test_only_what_changed_is_played_again(tmp_path, checked):
    for name in ("one", "two"):
        write_task(tmp_path / "tasks", name, SOLVED, test=HELLO)
    await checked()
    assert lines_in(tmp_path) == [2, 2]
    _, _, said = await checked()
    assert said.count("2 of 2 items are already in") == 2
    (tmp_path / "tasks/two/tests/test.sh").write_text("#!/bin/bash\n" + PASS.format("true"))
    found, _, _ = await checked()
    assert lines_in(tmp_path) == [3, 3]
    assert (found["one"].verdict, found["two"].verdict) == ("right", "given")


async def test_a_file_of_a_task_may_have_a_name_that_is_not_utf8(tmp_path, checked):
    write_task(tmp_path / "tasks", "one", {**SOLVED, "tests/" + os.fsdecode(b"\xff"): "x"}, test=HELLO)
    assert (await checked())[0]["one"].verdict == "right"


async def test_a_signal_ends_it_and_the_same_command_goes_on(tmp_path, checked):
    class Interrupted(HarborTasksEnv):
        async def compute_reward(self, item, trajectory, ctx):
            if item["task_id"] == "two":
                signal.raise_signal(signal.SIGINT)
            return await super().compute_reward(item, trajectory, ctx)

    for name in ("one", "two"):
        write_task(tmp_path / "tasks", name, SOLVED, test=HELLO)
    found, code, _ = await checked(Interrupted)
    assert (code, found["two"].verdict) == (130, "not played")
    found, code, _ = await checked()
    assert (code, {each.verdict for each in found.values()}) == (0, {"right"})
