"""Kill -9 of a run and of who follows its record: every group is taken, and none before the cursor again."""

import json
import random
import signal
import subprocess
import sys
from contextlib import ExitStack

import pytest

from environments.record.recorder import read_groups
from tests.environments.serve.loopback import SERVED, TURNWISE, running, wait_until, without_torch
from tests.equipment.kills import Victim, kill_at_random, lines_in

SEED = 23
KILLS = 30
"""Of each of the two, with `--soak`; a tenth without."""

TRAINER = """
import asyncio, os, random, signal, sys, time
from environments.record.record_feed import follow

async def main(record, cursor, seed, dies_at):
    drawn = random.Random(seed)
    async for group in follow(record, after=cursor, poll_s=0.01):
        taken = group.credited.group
        os.write(1, f"{group.cursor.number} {taken.item_id} {taken.epoch}\\n".encode())
        time.sleep(drawn.uniform(0, 0.03))  # trains
        if group.cursor.number == int(dies_at):
            os.kill(os.getpid(), signal.SIGKILL)
        group.acknowledge()

asyncio.run(main(*sys.argv[1:]))
"""


class Trainer:
    """Lives of a process that takes the groups of a record, each with what it took."""

    def __init__(self, folder):
        self.record, self.cursor, self.lives = folder / "record.jsonl", folder / "trainer.cursor", []

    def acknowledged(self):
        return json.loads(self.cursor.read_text())["number"] if self.cursor.exists() else 0

    def live(self, dies_at=-1):
        """A new process; it starts behind what an earlier one acknowledged."""
        out = self.cursor.with_name(f"life-{len(self.lives)}")
        self.lives.append((self.acknowledged(), out))
        command = [
            sys.executable,
            "-c",
            TRAINER,
            self.record,
            self.cursor,
            str(len(self.lives)),
            str(dies_at),
        ]
        with out.open("wb") as stdout:
            return subprocess.Popen(list(map(str, command)), env=without_torch(), stdout=stdout)

    def taken(self, life=-1):
        """What a life took: number of the line, item and epoch."""
        lines = self.lives[life][1].read_text().splitlines()
        return [(int(number), item, int(epoch)) for number, item, epoch in map(str.split, lines)]

    def assert_at_least_once(self):
        """Each life took, in order, what follows the cursor that it found, and all of them took all."""
        groups = list(read_groups(self.record))
        there = [(n, each.group.item_id, each.group.epoch) for n, each in enumerate(groups, start=1)]
        for life, (acknowledged, _) in enumerate(self.lives):
            taken = self.taken(life)
            assert taken == there[acknowledged : acknowledged + len(taken)]
        assert self.acknowledged() == len(there)


def process(place, *options):
    return [TURNWISE, "process", f"{SERVED}:WriteWord", *place, "--env.group_size", "2", *options]


@pytest.mark.timeout(1200)
def test_kills_of_run_and_trainer_lose_no_group_and_give_none_before_the_cursor(tmp_path, soak):
    kills, drawn = KILLS if soak else KILLS // 10, random.Random(SEED)
    trainer, log = Trainer(tmp_path), tmp_path / "log"

    def run(groups=100_000):
        command = process(["--out", trainer.record], "--env.total_steps", groups, "--env.missing_outcome", 0)
        with log.open("ab") as output:
            return subprocess.Popen(
                list(map(str, command)), env=without_torch(), stdout=output, stderr=output
            )

    writer = Victim(run, lambda: lines_in(trainer.record))
    reader = Victim(trainer.live, lambda: len(trainer.taken()))
    order = [writer, reader] * kills
    drawn.shuffle(order)
    try:
        kill_at_random(order, drawn)
        writer.kill()
        planned = lines_in(trainer.record) + 80
        writer.process = run(planned)
        assert writer.process.wait(600) == 0, log.read_text()[-3000:]
        wait_until(lambda: trainer.acknowledged() == lines_in(trainer.record), 600)
    finally:
        for each in (writer.process, reader.process):
            each.kill()
            each.wait()
    assert lines_in(trainer.record) == planned
    trainer.assert_at_least_once()


def test_a_trainer_that_is_killed_before_it_acknowledges_gets_the_group_again(tmp_path):
    trainer = Trainer(tmp_path)
    with ExitStack() as stack:
        options = ["--env.total_steps", "6", "--env.missing_outcome", "0"]
        stack.enter_context(
            running(process(["--out", str(trainer.record)], *options), stdout=subprocess.DEVNULL)
        )
        for dies_at in (1, 4, 4, 6):
            assert trainer.live(dies_at).wait(90) == -signal.SIGKILL
            assert trainer.acknowledged() == dies_at - 1
        last = trainer.live()
        wait_until(lambda: trainer.acknowledged() == 6)
        last.kill()
        last.wait()
    assert [[number for number, *_ in trainer.taken(life)] for life in range(5)] == [
        [1], [1, 2, 3, 4], [4], [4, 5, 6], [6],
    ]  # fmt: skip
    trainer.assert_at_least_once()
