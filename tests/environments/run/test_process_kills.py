"""Kill -9 of `process` at random moments: the same command goes on, and nothing is missing or double."""

import random
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from environments.record.recorder import read_groups
from tests.environments.run.leftovers import groups_and_folders
from tests.environments.serve.loopback import SERVED, TURNWISE, wait_until, without_torch
from tools.sandbox.host.process_ids import identity

SEED = 11
KILLS = 24
"""With `--soak`; a sixth without."""
SHARDS = 3


def lines_in(record):
    return record.read_bytes().count(b"\n") if record.exists() else 0


def killed_and_done(command, record, kills, drawn, log):
    """The owners of a command's processes, which are killed so often before the last one ends its work.

    And how many groups were left for that one.
    """
    owners, killed = set(), 0
    while True:
        process = subprocess.Popen(command, env=without_torch(), stdout=log, stderr=log)
        owners.add(identity(process.pid))
        if killed == kills:
            before = lines_in(record)
            break
        # Most of them in the middle of work, whose start takes longer than work on a busy machine.
        if drawn.random() < 0.75:
            lines = lines_in(record)
            wait_until(lambda: lines_in(record) > lines or process.poll() is not None)  # noqa: B023
        time.sleep(drawn.uniform(0.0, 0.3))
        assert process.poll() in (None, 0), Path(log.name).read_text()[-3000:]
        process.kill()
        process.wait()
        killed += 1
    assert process.wait(600) == 0, Path(log.name).read_text()[-3000:]
    return owners, lines_in(record) - before


def keys_of(records):
    """How often each group is in records, every line of which is read."""
    groups = list(read_groups(records))
    keys = Counter((each.group.item_id, each.group.epoch) for each in groups if each.status != "failed")
    assert len(groups) == keys.total()
    return keys


def write_word(record, *, planned):
    command = [TURNWISE, "process", f"{SERVED}:WriteWord", "--out", str(record), "--env.group_size", "2"]
    # A sampled rollout may do nothing that is scored.
    return [*command, "--env.total_steps", str(planned), "--env.missing_outcome", "0"]


def reap():
    subprocess.run([TURNWISE, "doctor", "sandbox", "local", "--reap"], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.timeout(1200)
def test_kills_lose_no_group_repeat_none_and_tear_no_line(tmp_path, soak):
    kills, drawn = KILLS if soak else KILLS // 6, random.Random(SEED)
    planned, record = 25 * kills, tmp_path / "record.jsonl"
    with (tmp_path / "log").open("ab") as log:
        owners, left = killed_and_done(write_word(record, planned=planned), record, kills, drawn, log)
    assert 0 < left < planned, "the kills missed the work"
    counts = keys_of(record)
    assert len(counts) == planned
    assert set(counts.values()) == {1}
    reap()
    assert groups_and_folders(owners) == []


@pytest.mark.timeout(1200)
def test_killed_shards_lose_no_group_and_share_none(tmp_path, soak):
    """The union is what the plan of the whole run has: each item in as many epochs."""
    kills, drawn = 10 if soak else 1, random.Random(SEED)
    planned = 60 * kills
    records = [tmp_path / f"{index}.jsonl" for index in range(SHARDS)]
    owners, left = set(), 0
    with (tmp_path / "log").open("ab") as log:
        for index, record in enumerate(records):
            command = [*write_word(record, planned=planned), "--shard", f"{index}/{SHARDS}"]
            made, more = killed_and_done(command, record, kills, drawn, log)
            owners, left = owners | made, left + more
    assert 0 < left < planned, "the kills missed the work"
    assert set(map(lines_in, records)) == {planned // SHARDS}
    assert keys_of(records) == Counter((f"word{n % 4}", n // 4) for n in range(planned))
    reap()
    assert groups_and_folders(owners) == []
