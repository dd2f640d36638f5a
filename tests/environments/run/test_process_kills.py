"""Kill -9 of `process` at random moments: the same command goes on, and nothing is missing or double."""

import random
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.environments.serve.loopback import SERVED, TURNWISE, without_torch
from tests.equipment.kills import Victim, assert_nothing_is_left, finished_groups, kill_at_random, lines_in

SEED = 11
KILLS = 24
"""With `--soak`; a sixth without."""
SHARDS = 3


def killed_and_done(command, record, kills, drawn, log):
    """The owners of a command's processes, and how many groups were left for the last one."""
    victim = Victim(
        lambda: subprocess.Popen(command, env=without_torch(), stdout=log, stderr=log),
        lambda: lines_in(record),
    )
    kill_at_random([victim] * kills, drawn)
    before = lines_in(record)
    assert victim.process.wait(600) == 0, Path(log.name).read_text()[-3000:]
    return victim.identities, lines_in(record) - before


def write_word(record, *, planned):
    command = [TURNWISE, "process", f"{SERVED}:WriteWord", "--out", str(record), "--env.group_size", "2"]
    # A sampled rollout may do nothing that is scored.
    return [*command, "--env.total_steps", str(planned), "--env.missing_outcome", "0"]


@pytest.mark.timeout(1200)
def test_kills_lose_no_group_repeat_none_and_tear_no_line(tmp_path, soak):
    kills, drawn = KILLS if soak else KILLS // 6, random.Random(SEED)
    # More than are done in the seconds by which a busy machine may come late to a kill.
    planned, record = 25 * kills + 100, tmp_path / "record.jsonl"
    with (tmp_path / "log").open("ab") as log:
        owners, left = killed_and_done(write_word(record, planned=planned), record, kills, drawn, log)
    assert 0 < left < planned, "the kills missed the work"
    counts = finished_groups(record)
    assert len(counts) == planned
    assert set(counts.values()) == {1}
    assert_nothing_is_left(owners)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_killed_shards_lose_no_group_and_share_none(tmp_path):
    """The union is what the plan of the whole run has: each item in as many epochs."""
    kills, drawn = 10, random.Random(SEED)
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
    assert finished_groups(records) == Counter((f"word{n % 4}", n // 4) for n in range(planned))
    assert_nothing_is_left(owners)
