"""`turnwise check` on environments that end, block or confuse its process: a row, and no traceback."""

import json
from pathlib import Path

import pytest

from tests.tables import cases
from turnwise.cli.main import main

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


@pytest.fixture
def check(tmp_path, monkeypatch, capfd):
    """`turnwise check` of a file: exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)

    def checked(text, *args):
        Path("hostile.py").write_text(text)
        return main(["check", "hostile.py:Env", "--json", *args]), *capfd.readouterr()

    return checked


@cases(
    ("hook", "row", "found"),
    [
        (f"{SCORE}os._exit(0)", "rollout", "the process ended with exit code 0 in compute_reward"),
        (f"{SCORE}ctypes.string_at(0)", "rollout", "signal SIGSEGV in compute_reward"),
        (f"{SCORE}os.closerange(3, 64)", "rollout", "the process ended"),
        (f"{SCORE}sys.exit(0)", "rollout", "SystemExit: 0"),
        (f"{ASYNC_SCORE}asyncio.current_task().cancel(); await asyncio.sleep(1)", "rollout", "Cancelled"),
        ("def setup(self):\n        os._exit(0)", "opens", "exit code 0 in setup"),
    ],
)
def test_a_process_that_ends_is_a_row(check, hook, row, found):
    code, shown, _ = check(HOSTILE.format(hook=hook))
    rows = {each["check"]: each for each in json.loads(shown)["checks"]}
    assert (code, rows[row]["result"]) == (1, "fail")
    assert found in rows[row]["found"]
    assert "Traceback" not in shown


def test_a_hook_that_blocks_the_event_loop_is_named(check):
    _, shown, _ = check(HOSTILE.format(hook=f"{ASYNC_SCORE}time.sleep(600)"), "--env.hook_block_s", "1")
    row = next(each for each in json.loads(shown)["checks"] if each["check"] == "rollout")
    assert "in compute_reward has blocked the event loop" in row["found"]


def test_a_setup_that_never_ends_is_a_row(check):
    hook = "async def setup(self):\n        await asyncio.sleep(600)"
    _, shown, _ = check(HOSTILE.format(hook=hook), "--limit", "12")
    row = json.loads(shown)["checks"][0]
    assert (row["check"], row["result"]) == ("opens", "fail")
    assert row["found"] == "it takes longer than 12 s (--limit) in setup"
