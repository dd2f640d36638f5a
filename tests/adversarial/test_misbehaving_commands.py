"""The commands on an environment that misbehaves in every way: groups planned are groups recorded."""

import os
import subprocess
from pathlib import Path

import pytest

from environments.record.recorder import read_groups
from tests.adversarial.misbehaving_items import ALL
from tests.environments.conftest import RunApi
from tests.environments.serve.loopback import TURNWISE, ended, running, wait_until, without_torch

ITEMS = f"{Path(__file__).with_name('misbehaving_items.py')}:Items"
ROOT = str(Path(__file__).parents[2])


def environ(every):
    variables = without_torch()
    paths = [ROOT, *filter(None, [variables.get("PYTHONPATH")])]
    return {**variables, "EVERY": str(every), "PYTHONPATH": os.pathsep.join(paths)}


def turnwise(command, *options, every=1):
    return subprocess.run(
        [TURNWISE, command, ITEMS, *options], capture_output=True, text=True, env=environ(every), timeout=100
    )


def planned(every):
    return 2 + len(list(ALL)[::every])


def test_process_records_every_group_and_exits_with_0(tmp_path, soak):
    every = 1 if soak else 2
    done = turnwise("process", "--out", str(tmp_path / "r.jsonl"), every=every)
    groups = list(read_groups(tmp_path / "r.jsonl"))
    assert (done.returncode, len(groups)) == (0, planned(every)), done.stderr[-2000:]
    assert {len(read.group.trajectories) + len(read.group.failures) for read in groups} == {3}
    broke = {read.group.item_id for read in groups if read.group.failures}
    assert broke == {read.group.item_id for read in groups if not read.group.item_id.startswith("good")}


@pytest.fixture
def api():
    server = RunApi()
    server.start()
    server.start_trainer(batch_size=6, max_token_len=40_000)
    yield server
    server.kill()


def test_serve_records_every_group_and_goes_on(api, tmp_path, soak):
    every = 3 if soak else 7
    record = tmp_path / "record.jsonl"
    command = [TURNWISE, "serve", ITEMS, "--env.rollout_server_url", api.url, "--out", str(record)]
    command += ["--outbox", str(tmp_path / "o.sqlite"), "--env.credit_view", "token_advantages"]
    log = tmp_path / "log.txt"
    with log.open("wb") as out, running(command, environ=environ(every), stdout=out, stderr=out) as process:
        wait_until(
            lambda: process.poll() is not None or (record.exists() and lines(record) >= planned(every))
        )
        assert process.poll() is None, log.read_text()[-2000:]
        assert ended(process) == 0
    first_round = {read.group.item_id for read in read_groups(record) if read.group.epoch == 0}
    assert len(first_round) == planned(every)


def lines(path):
    return path.read_bytes().count(b"\n")
