"""`turnwise serve` as a process: what it says, its exit codes, and its memory over a long run."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from environments.recorder import read_groups

SERVED = Path(__file__).with_name("served_env.py")
TURNWISE = str(Path(sys.executable).with_name("turnwise"))


@contextmanager
def serving(api, tmp_path, *options, env="Instant"):
    command = [TURNWISE, "serve", f"{SERVED}:{env}", "--env.rollout_server_url", api.url]
    command += ["--outbox", str(tmp_path / "o.sqlite"), "--env.group_size", "4", *options]
    log = tmp_path / "serve.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
        process.log = log
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def wait_until(condition, seconds=90):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def memory_mb(process):
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 2**20


def test_a_sigterm_while_the_trainer_is_awaited_exits_with_0(api, tmp_path):
    with serving(api, tmp_path) as process:
        wait_until(lambda: "waiting for the trainer to start" in process.log.read_text())
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_the_start_says_which_trainers_the_encoding_is_for(api, tmp_path):
    with serving(api, tmp_path) as process:
        wait_until(lambda: "waiting for" in process.log.read_text())
        said = " ".join(process.log.read_text().split())
    assert "verl's Atropos recipe" in said
    assert "--env.credit_encoding turn_rows" in said


def test_a_batch_size_that_cannot_be_filled_is_one_line_and_exit_code_2(api, tmp_path):
    api.start_trainer(batch_size=6)
    with serving(api, tmp_path) as process:
        assert process.wait(60) == 2
        errors = [
            line for line in process.log.read_text().splitlines() if line.startswith("turnwise: error:")
        ]
    assert len(errors) == 1
    assert "batches of 6 rows" in errors[0]


def test_an_api_that_never_comes_is_exit_code_1_on_request(api, tmp_path):
    api.kill()
    with serving(api, tmp_path, "--env.exit_when_api_away_s", "1") as process:
        assert process.wait(60) == 1


def test_every_group_is_recorded_when_a_record_is_asked_for(api, tmp_path):
    api.start_trainer(batch_size=4)
    record = tmp_path / "r.jsonl"
    with serving(api, tmp_path, "--out", str(record)) as process:
        taken = []
        wait_until(lambda: (batch := api.take_batch()) is not None and not taken.append(batch))
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert taken[0][0]["overrides"][0]["group_id"] in {group.group.group_id for group in read_groups(record)}


@pytest.mark.timeout(300)
def test_two_thousand_groups_with_a_trainer_that_stalls_leave_memory_flat(api, tmp_path):
    api.start_trainer(batch_size=32)
    memory, taken = [], 0
    with serving(api, tmp_path) as process:
        while taken < 2000:
            batch = api.take_batch()
            if batch is None:
                assert process.poll() is None
                time.sleep(0.01)
                continue
            taken += len(batch)
            if taken % 200 == 0:
                # The trainer stalls until the API and the outbox are full: no group is started then.
                wait_until(lambda: api.get("/status")["queue_size"] >= 24)
                memory.append(memory_mb(process))
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        last = re.findall(r"groups (\d+) ok", process.log.read_text())[-1]
    print(f"groups {last}, memory in MB after every 200 taken: {[round(each, 1) for each in memory]}")  # noqa: T201
    assert int(last) >= 2000
    assert max(memory[1:]) - memory[1] < 10
