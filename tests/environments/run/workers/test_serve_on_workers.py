"""`serve` with workers: they pack, and one outbox delivers, whatever becomes of a worker."""

import asyncio
import os
import signal
from collections import Counter

from environments.record.recorder import read_groups
from environments.run.open_run import RunOptions
from environments.serve.serving import serve
from environments.wire.training_rows import columns_of
from environments.wire.views import VIEWS
from tests.environments.run.workers.supervised import Supervisors, on_supervisors
from tests.environments.run.workers.worked_env import Worked, WorkedConfig
from tests.environments.serve.serve_world import until
from tests.environments.write_file import quiet

BATCHES = 12


async def served(api, path, supervisors, disturb, **settings):
    """Serve to a trainer that takes so many batches; the tokens of all rows that it got."""
    config = WorkedConfig(
        group_size=2,
        rollout_server_url=api.url,
        credit_view="token_advantages",
        total_steps=BATCHES,
        data_path_to_save_groups=str(path / "r.jsonl"),
        **settings,
    )
    options = RunOptions(outbox=path / "outbox.sqlite")
    running = asyncio.create_task(
        serve(
            Worked(config), quiet(), options=options, open_source=on_supervisors(2, supervisors=supervisors)
        )
    )
    taken = []
    while len(taken) < BATCHES and not running.done():
        batch = (await asyncio.to_thread(api.get, "/batch"))["batch"]
        if batch is None:
            await asyncio.sleep(0.02)
            continue
        taken.append(batch)
        await disturb(len(taken))
    assert await asyncio.wait_for(running, 60) == 0
    return [
        (row, advantages)
        for batch in taken
        for post in batch
        for row, advantages in zip(post["tokens"], post["advantages"], strict=True)
    ]


def shown(path, view="token_advantages"):
    """The rows that a trainer is to get of each group of a record."""
    rows = []
    for credited in read_groups(path / "r.jsonl"):
        if credited.status == "ok":
            for group in VIEWS[view](credited, 1, "once"):
                columns = columns_of(group)
                rows += zip(columns["tokens"], columns["advantages"], strict=True)
    return rows


async def test_what_workers_pack_is_what_the_record_shows_and_a_killed_one_costs_nothing(api, tmp_path):
    api.start_trainer(batch_size=4)
    supervisors, killed = Supervisors(), []

    async def kill(batches):
        if batches in (3, 6, 9):
            worker = supervisors.workers[batches % 2]
            # The batches between two kills may have been ready before the first.
            await until(lambda: worker._process.pid not in killed)
            killed.append(worker._process.pid)
            os.kill(killed[-1], signal.SIGKILL)

    got = await served(api, tmp_path, supervisors, kill)
    recorded = Counter(map(repr, shown(tmp_path)))
    assert Counter(map(repr, got)) <= recorded
    groups = [(each.group.item_id, each.group.epoch) for each in read_groups(tmp_path / "r.jsonl")]
    assert len(groups) == len(set(groups))
    assert len(set(killed)) == 3


async def nothing(_):
    pass


async def test_a_group_that_takes_too_long_ends_in_its_worker_and_is_tried_once_more(api, tmp_path):
    api.start_trainer(batch_size=4)
    await served(api, tmp_path, Supervisors(), nothing, does={"3": "wait"}, worker_timeout=2)
    failed = {
        each.group.item_id: each.reason
        for each in read_groups(tmp_path / "r.jsonl")
        if each.status == "failed"
    }
    assert failed in ({}, {"3": "the group took longer than 2 s, twice"})
