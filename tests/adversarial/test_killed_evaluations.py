"""An evaluation and a curriculum that are killed: the same command goes on, and what is recorded stays."""

import json
import os
import signal
import subprocess
import sys

import pytest

from environments.record.recorder import read_groups

CODE = """
import asyncio, os
from turnwise import AgentEnv, Choice, say

class Slow(AgentEnv):
    name = "slow"
    sandbox = "none"

    def load_items(self):
        return [{"id": f"i{n}"} for n in range(6)]

    def format_prompt(self, item):
        return item["id"]

    async def compute_reward(self, item, trajectory, ctx):
        if os.environ.get("STOP_AT") == item["id"]:
            print("at the item", flush=True)
            await asyncio.Event().wait()
        return 1.0

    def scripted_choices(self, item, messages, tools, skill):
        return [Choice(probability=1.0, message=say("yes"))]

class Asked(Slow):
    name = "asked"

    def next_items(self, history):
        return [f"i{len(history)}"] if not history.in_flight else None

if __name__ == "__main__":
    Slow.cli()
"""


@pytest.fixture
def command(tmp_path):
    (tmp_path / "slow_env.py").write_text(CODE)

    def made(*args, stop_at="", killed_by=None):
        process = subprocess.Popen(
            [sys.executable, "-m", "turnwise", *args, "--env.max_concurrent_rollouts", "1"],
            cwd=tmp_path,
            env={**os.environ, "STOP_AT": stop_at},
            stdout=subprocess.PIPE,
            text=True,
        )
        with process:
            if killed_by is not None:
                assert any("at the item" in line for line in process.stdout)
                process.send_signal(killed_by)
            return process.stdout.read(), process.wait(60)

    return made


EVALUATE = ("evaluate", "slow_env.py:Slow", "--env.eval_rollouts", "2", "--env.max_failed_groups", "0")


def assert_incomplete(folder, shown):
    metrics = json.loads((folder / "metrics.json").read_text())
    assert (metrics["planned"], metrics["complete"]) == (6, False)
    assert 0 < metrics["tried"] < 6
    assert f"{metrics['tried']} of 6 tried; INCOMPLETE" in shown
    samples = (folder / "samples.jsonl").read_text().splitlines()
    assert all(json.loads(line)["evaluation"]["complete"] is False for line in samples)


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGINT], ids=["kill", "interrupt"])
def test_an_evaluation_that_was_ended_says_so_everywhere_and_goes_on(tmp_path, command, by):
    folder = tmp_path / "runs" / "slow" / "eval-default"
    shown, code = command(*EVALUATE, stop_at="i3", killed_by=by)
    if by is signal.SIGINT:
        assert code == 128 + signal.SIGINT
        assert_incomplete(folder, shown)
    before = (folder / "record.jsonl").read_bytes()
    assert before.count(b"\n") >= 2
    _, code = command(*EVALUATE)
    assert code == 0
    assert (folder / "record.jsonl").read_bytes().startswith(before)
    numbers = json.loads((folder / "metrics.json").read_text())
    assert (numbers["tried"], numbers["results"]["all"]["eval/rollouts"]) == (6, 12)


def test_a_curriculum_that_was_killed_asks_for_nothing_twice(tmp_path, command):
    args = (
        "process",
        "slow_env.py:Asked",
        "--env.group_size",
        "2",
        "--env.total_steps",
        "6",
        "--out",
        "r.jsonl",
    )
    command(*args, stop_at="i3", killed_by=signal.SIGKILL)
    _, code = command(*args)
    keys = [(each.group.item_id, each.group.epoch) for each in read_groups(tmp_path / "r.jsonl")]
    assert (code, sorted(keys)) == (0, [(f"i{n}", 0) for n in range(6)])
