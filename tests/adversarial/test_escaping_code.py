"""What code does to the event loop, the console and the process ends no run, and starts no second one."""

import json
from pathlib import Path

import pytest

from tests.adversarial.commands import recorded, run
from tests.adversarial.escaping_env import WAYS
from tests.environments.serve.loopback import TURNWISE

ENVS = Path(__file__).with_name("escaping_env.py")


@pytest.mark.parametrize("env", ["Escaping", "ForkingInDef"])
def test_process_records_every_planned_group_once(tmp_path, env):
    command = [TURNWISE, "process", f"{ENVS}:{env}", "--out", str(tmp_path / "record.jsonl")]
    done = run([*command, "--env.group_size", "2"])
    assert done.returncode == 0, done.stdout
    assert recorded(tmp_path) == len(WAYS)


def test_evaluate_tries_every_item(tmp_path):
    done = run([TURNWISE, "evaluate", f"{ENVS}:Escaping", "--out", str(tmp_path)])
    assert done.returncode == 0, done.stdout
    assert json.loads((tmp_path / "metrics.json").read_text())["complete"]


def test_each_attempt_to_end_the_loop_is_told(tmp_path):
    command = [TURNWISE, "process", f"{ENVS}:Escaping", "--out", str(tmp_path / "record.jsonl")]
    done = run([*command, "--env.group_size", "2", "--env.max_items", "1"])
    assert "a callback tried to end the event loop: SystemExit" in done.stdout
