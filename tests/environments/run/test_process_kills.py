"""Kill -9 of `process` at random moments: the same command goes on, and nothing is missing or double."""

import random
import subprocess
import time
from collections import Counter

import pytest

from environments.record.recorder import read_groups
from tests.environments.run.leftovers import groups_and_folders
from tests.environments.serve.loopback import SERVED, TURNWISE, wait_until, without_torch
from tools.sandbox.host.process_ids import identity

SEED = 11
KILLS = 24
"""With `--soak`; a sixth without."""


def lines_in(record):
    return record.read_bytes().count(b"\n") if record.exists() else 0


@pytest.mark.timeout(1200)
def test_kills_lose_no_group_repeat_none_and_tear_no_line(tmp_path, soak):
    kills, drawn = KILLS if soak else KILLS // 6, random.Random(SEED)
    planned = 25 * kills
    record, owners, killed = tmp_path / "record.jsonl", set(), 0
    command = [TURNWISE, "process", f"{SERVED}:WriteWord", "--out", str(record), "--env.group_size", "2"]
    # A sampled rollout may do nothing that is scored.
    command += ["--env.total_steps", str(planned), "--env.missing_outcome", "0"]
    with (tmp_path / "log").open("ab") as log:
        while True:
            process = subprocess.Popen(command, env=without_torch(), stdout=log, stderr=log)
            owners.add(identity(process.pid))
            if killed == kills:
                left = planned - lines_in(record)
                break
            # Most of them in the middle of work, whose start takes longer than work on a busy machine.
            if drawn.random() < 0.75:
                lines = lines_in(record)
                wait_until(lambda: lines_in(record) > lines or process.poll() is not None)  # noqa: B023
            time.sleep(drawn.uniform(0.0, 0.3))
            assert process.poll() in (None, 0), (tmp_path / "log").read_text()[-3000:]
            process.kill()
            process.wait()
            killed += 1
        assert process.wait(600) == 0, (tmp_path / "log").read_text()[-3000:]
    assert 0 < left < planned, "the kills missed the work"
    groups = list(read_groups(record))  # reads every line
    counts = Counter((each.group.item_id, each.group.epoch) for each in groups if each.status != "failed")
    assert len(groups) == len(counts) == planned
    assert set(counts.values()) == {1}
    subprocess.run([TURNWISE, "doctor", "sandbox", "local", "--reap"], check=True, stdout=subprocess.DEVNULL)
    assert groups_and_folders(owners) == []
