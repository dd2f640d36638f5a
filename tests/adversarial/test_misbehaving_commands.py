"""The commands on an environment that misbehaves in every way: groups planned are groups recorded."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from environments.record.recorder import read_groups
from tests.adversarial.misbehaving_items import PLANNED
from tests.environments.conftest import RunApi
from tests.environments.serve.loopback import TURNWISE, ended, running, wait_until, without_torch

ITEMS = f"{Path(__file__).with_name('misbehaving_items.py')}:Items"
ROOT = str(Path(__file__).parents[2])


def environ():
    variables = without_torch()
    paths = [ROOT, *filter(None, [variables.get("PYTHONPATH")])]
    return {**variables, "PYTHONPATH": os.pathsep.join(paths)}


def test_evaluate_counts_every_item_and_exits_with_0(tmp_path):
    command = [TURNWISE, "evaluate", ITEMS, "--out", str(tmp_path), "--env.eval_rollouts", "3"]
    done = subprocess.run(command, capture_output=True, text=True, env=environ(), timeout=100)
    assert done.returncode == 0, done.stderr[-2000:]
    metrics = json.loads((tmp_path / "metrics.json").read_text())["results"]["all"]
    assert metrics["eval/items"] == len(PLANNED)
    assert metrics["eval/rollouts"] + metrics["eval/dropped_rollouts"] == 3 * len(PLANNED)


@pytest.fixture
def api():
    server = RunApi()
    server.start()
    server.start_trainer(batch_size=6, max_token_len=40_000)
    yield server
    server.kill()


def test_serve_records_every_group_and_goes_on(api, tmp_path):
    record = tmp_path / "record.jsonl"
    command = [TURNWISE, "serve", ITEMS, "--env.rollout_server_url", api.url, "--out", str(record)]
    command += ["--outbox", str(tmp_path / "o.sqlite"), "--env.credit_view", "token_advantages"]
    log = tmp_path / "log.txt"
    with log.open("wb") as out, running(command, environ=environ(), stdout=out, stderr=out) as process:
        wait_until(lambda: process.poll() is not None or (record.exists() and lines(record) >= len(PLANNED)))
        assert process.poll() is None, log.read_text()[-2000:]
        assert ended(process) == 0
    first_round = {read.group.item_id for read in read_groups(record) if read.group.epoch == 0}
    assert len(first_round) == len(PLANNED)


def lines(path):
    return path.read_bytes().count(b"\n")
