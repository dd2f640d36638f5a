"""`turnwise check` on environments that end, block or confuse its process: a row, and no traceback."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOSTILE = """
import asyncio, ctypes, os, signal, sys, time
from turnwise import AgentEnv

class Env(AgentEnv):
    name = "hostile"
    sandbox = "none"
    def load_items(self):
        return [1]
    def format_prompt(self, item):
        return "Say yes."
    def compute_reward(self, item, trajectory, ctx):
        return 1.0
    {hook}
"""
SCORE = "def compute_reward(self, item, trajectory, ctx):\n        "
ASYNC_SCORE = f"async {SCORE}"


def check(tmp_path, text, *args):
    (tmp_path / "hostile.py").write_text(text)
    command = [sys.executable, "-m", "turnwise", "check", "hostile.py:Env", "--json", *args]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("hook", "row", "found"),
    [
        (f"{SCORE}os._exit(0)", "rollout", "the process ended with exit code 0 in compute_reward"),
        (f"{SCORE}ctypes.string_at(0)", "rollout", "signal SIGSEGV in compute_reward"),
        (f"{SCORE}os.closerange(3, 64)", "rollout", "the process ended"),
        (f"{SCORE}sys.exit(0)", "rollout", "SystemExit: 0"),
        (
            f"{ASYNC_SCORE}asyncio.current_task().cancel(); await asyncio.sleep(1)",
            "rollout",
            "CancelledError",
        ),
        ("def setup(self):\n        os._exit(0)", "opens", "exit code 0 in setup"),
    ],
    ids=["os-exit", "segfault", "descriptors", "sys-exit", "cancel", "setup"],
)
def test_a_process_that_ends_is_a_row(tmp_path, hook, row, found):
    checked = check(tmp_path, HOSTILE.format(hook=hook))
    rows = {each["check"]: each for each in json.loads(checked.stdout)["checks"]}
    assert checked.returncode == 1
    assert rows[row]["result"] == "fail"
    assert found in rows[row]["found"]
    assert "Traceback" not in checked.stdout


def test_a_hook_that_blocks_the_event_loop_is_named(tmp_path):
    hook = f"{ASYNC_SCORE}time.sleep(600)"
    checked = check(tmp_path, HOSTILE.format(hook=hook), "--env.hook_block_s", "1")
    row = next(each for each in json.loads(checked.stdout)["checks"] if each["check"] == "rollout")
    assert "in compute_reward has blocked the event loop" in row["found"]


def test_a_setup_that_never_ends_is_a_row(tmp_path):
    hook = "async def setup(self):\n        await asyncio.sleep(600)"
    checked = check(tmp_path, HOSTILE.format(hook=hook), "--limit", "4")
    row = json.loads(checked.stdout)["checks"][0]
    assert (row["check"], row["result"]) == ("opens", "fail")
    assert row["found"] == "it takes longer than 4 s (--limit) in setup"


def test_what_an_environment_prints_is_no_part_of_the_report(tmp_path):
    checked = check(tmp_path, HOSTILE.format(hook=f"{SCORE}print('}}{{'); return 1.0"))
    assert checked.returncode == 0
    assert json.loads(checked.stdout)["checks"]
    assert "}{" in checked.stderr


@pytest.mark.parametrize(
    ("text", "code"), [("raise SystemExit(0)", 2), ("1 / 0", 2), ("import os; os._exit(0)", 1)],
    ids=["exit", "raise", "os-exit"],
)  # fmt: skip
def test_a_file_that_cannot_be_loaded_is_told_without_a_traceback(tmp_path, text, code):
    checked = check(tmp_path, text)
    assert checked.returncode == code
    assert "Traceback" not in checked.stderr


def test_a_wrong_setting_is_one_line_and_2(tmp_path):
    checked = check(tmp_path, HOSTILE.format(hook="pass"), "--env.max_turn", "3")
    assert (checked.returncode, checked.stdout, checked.stderr.count("\n")) == (2, "", 1)
    assert "did you mean --env.max_turns" in checked.stderr
