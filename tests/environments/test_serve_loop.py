"""The serving loop against the real API: what it starts, retries, pauses for, and how it ends."""

import asyncio
import io
import os
import signal
import uuid
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from rich.console import Console

from environments.brake import BRAKE_AFTER
from environments.delivery import Delivery
from environments.link import Identity, Link
from environments.outbox import Outbox
from environments.outbox_thread import OutboxThread
from environments.payloads import Shape
from environments.process import GroupTask, plan_for_ever
from environments.recorder import Recorder, read_groups
from environments.serve_loop import API_AWAY, Bounds, Rollouts, ServeLoop
from environments.testing import group_of
from environments.trajectory import CreditedGroup, Failure, StopReason
from environments.trajectory_api import TrajectoryApi
from tools.errors import ConfigError

ITEMS = list("abc")


def group_for(task, rows=4, **changes):
    rewards = [[float(row)] for row in range(rows)]
    group = replace(group_of(rewards), group_id=uuid.uuid4().hex, item_id=task.item_id, epoch=task.epoch)
    made = CreditedGroup(
        group=group,
        advantages=tuple((row - 1.5,) for row in range(rows)),
        policy="p",
        estimator="turn_return",
    )
    return replace(made, **changes)


def lost_model(task):
    failure = Failure(
        sibling=0, stop_reason=StopReason.POLICY_ERROR, error="PolicyError: gone", traceback="", turns=0
    )
    failed = group_for(task, status="failed", reason="0 of 4 rollouts survived", advantages=())
    return replace(failed, group=replace(failed.group, trajectories=(), failures=(failure,)))


class World:
    """Rollouts whose every group waits until the test lets it go on."""

    def __init__(self):
        self.started = []
        self.go = asyncio.Event()
        self.go.set()
        self.model_down = False
        self.probes = 0

    async def run_group(self, task):
        self.started.append((task.item_id, task.epoch))
        await self.go.wait()
        return lost_model(task) if self.model_down else group_for(task)

    async def probe(self):
        self.probes += 1
        if self.model_down:
            raise ConfigError("no model server answers")


@asynccontextmanager
async def serving(api, tmp_path, world, *, recorder=None, patience_s=None, **bounds):
    outbox = Outbox(tmp_path / "o.sqlite")
    client = TrajectoryApi(api.url)
    name = f"env-{outbox.fact('run_id')}"
    in_outbox = OutboxThread(outbox)
    link = Link(client, Identity(name=name, max_row_tokens=1000), Shape(group_size=4), in_outbox)
    shown = io.StringIO()
    console = Console(file=shown, width=200)
    limits = {
        "max_in_flight": 1,
        "max_waiting": 8,
        "group_timeout_s": None,
        "grace_s": 30,
        "total_steps": -1,
        "allow_approximate": False,
    }
    rollouts = Rollouts(
        tasks=lambda place: plan_for_ever(ITEMS, ITEMS, place),
        run_group=world.run_group,
        probe=world.probe,
        origin={"env": "e", "policy": "p", "estimator": "turn_return"},
    )

    def say(line):
        console.print(line, soft_wrap=True)

    delivery = Delivery(in_outbox, client, link, patience_s=patience_s, say=say)
    loop = ServeLoop(
        delivery, rollouts, bounds=Bounds(**(limits | bounds)), console=console, recorder=recorder
    )
    loop.delivery, loop.shown = delivery, shown
    try:
        yield loop
    finally:
        await delivery.close()
        outbox.close()


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - many kinds of state are waited for
            await asyncio.sleep(0.01)


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


async def test_a_sigterm_lets_groups_in_flight_end_delivers_them_and_exits_with_0(trained, tmp_path):
    world = World()
    world.go.clear()
    async with serving(trained, tmp_path, world) as loop:
        run = asyncio.create_task(loop.run())
        await until(lambda: world.started)
        terminate()
        await until(lambda: "stopping" in loop.shown.getvalue())
        world.go.set()
        assert await run == 0
        assert (len(world.started), loop.delivery.tally.posts) == (1, 1)
    assert trained.get("/status")["queue_size"] == 1


async def test_a_group_that_outlives_the_grace_period_is_rolled_out_again_by_the_next_serve(
    trained, tmp_path
):
    world = World()
    world.go.clear()
    async with serving(trained, tmp_path, world, grace_s=0.1) as loop:
        run = asyncio.create_task(loop.run())
        await until(lambda: world.started)
        terminate()
        assert await run == 0
    again = World()
    async with serving(trained, tmp_path, again) as loop:
        run = asyncio.create_task(loop.run())
        await until(lambda: len(again.started) > 1)
        terminate()
        await run
    assert again.started[0] == world.started[0]


async def test_a_finished_group_is_not_rolled_out_again_by_the_next_serve(trained, tmp_path):
    worlds = World(), World()
    for world in worlds:
        async with serving(trained, tmp_path, world, max_waiting=99) as loop:
            run = asyncio.create_task(loop.run())
            await until(lambda loop=loop: loop.summary.done)
            terminate()
            await run
    assert not set(worlds[0].started) & set(worlds[1].started)


async def test_groups_that_finished_while_a_slow_one_held_the_place_are_not_rolled_out_again(
    trained, tmp_path
):
    slow, again = World(), World()
    never = asyncio.Event()

    async def first_is_slow(task):
        if (task.item_id, task.epoch) == ("a", 0):
            await never.wait()
        return await World.run_group(slow, task)

    slow.run_group = first_is_slow
    async with serving(trained, tmp_path, slow, max_in_flight=2, max_waiting=4, grace_s=0.1) as loop:
        run = asyncio.create_task(loop.run())
        await until(lambda: loop.summary.done >= 4)
        terminate()
        await run
    async with serving(trained, tmp_path, again, max_waiting=99) as loop:
        run = asyncio.create_task(loop.run())
        await until(lambda: len(again.started) > 3)
        terminate()
        await run
    assert again.started[0] == ("a", 0)
    assert not set(slow.started) & set(again.started)


async def test_what_a_dying_model_server_left_of_a_group_is_no_fair_sample_so_it_starts_again(
    trained, tmp_path
):
    world = World()
    world.model_down = True

    async def two_short_ones_are_left(task):
        world.started.append((task.item_id, task.epoch))
        whole = group_for(task)
        if not world.model_down:
            return whole
        left = replace(whole.group, trajectories=whole.group.trajectories[:2])
        return replace(
            whole,
            group=replace(left, failures=lost_model(task).group.failures * 2),
            advantages=whole.advantages[:2],
        )

    world.run_group = two_short_ones_are_left
    async with serving(trained, tmp_path, world) as loop:
        run = asyncio.create_task(loop.run())
        await until(lambda: world.probes > 1)
        world.model_down = False
        await until(lambda: loop.summary.done)
        terminate()
        await run
    assert world.started[:2] == [("a", 0), ("a", 0)]


async def test_a_trainer_that_stalls_stops_new_groups_at_the_bound(trained, tmp_path):
    world = World()
    async with serving(trained, tmp_path, world, max_waiting=5) as loop:
        run = asyncio.create_task(loop.run())
        # Three batches of one group wait at the API, five in the outbox.
        await until(lambda: loop.delivery.tally.posts == 3 and loop.delivery.waiting == 5)
        for _ in range(3):
            await loop.delivery.changed()
        assert len(world.started) == 8
        terminate()
        await run


async def test_an_item_is_not_spent_while_the_model_server_is_down(trained, tmp_path):
    world = World()
    world.model_down = True
    async with serving(trained, tmp_path, world) as loop:
        run = asyncio.create_task(loop.run())
        await until(lambda: world.probes > 1)
        assert world.started == [("a", 0)]
        world.model_down = False
        await until(lambda: loop.summary.done)
        terminate()
        await run
        assert world.started[:2] == [("a", 0), ("a", 0)]
        assert loop.summary.groups["failed"] == 0
        assert "the model server is back" in loop.shown.getvalue()


async def test_a_group_that_runs_out_of_time_is_tried_once_more_and_then_recorded_as_failed(
    trained, tmp_path
):
    world = World()
    world.go.clear()
    with Recorder(tmp_path / "r.jsonl") as recorder:
        async with serving(trained, tmp_path, world, recorder=recorder, group_timeout_s=0.05) as loop:
            run = asyncio.create_task(loop.run())
            await until(lambda: loop.summary.done)
            world.go.set()
            terminate()
            await run
    assert world.started[:2] == [("a", 0), ("a", 0)]
    first = next(read_groups(tmp_path / "r.jsonl"))
    assert (first.status, first.reason) == ("failed", "the group took longer than 0.05 s, twice")


async def test_an_item_is_not_spent_while_the_model_server_hangs(trained, tmp_path):
    world = World()
    world.model_down = True
    world.go.clear()
    async with serving(trained, tmp_path, world, group_timeout_s=0.05) as loop:
        run = asyncio.create_task(loop.run())
        await until(lambda: world.probes > 1)
        assert world.started == [("a", 0)]
        world.model_down = False
        world.go.set()
        await until(lambda: loop.summary.done)
        terminate()
        await run
        assert loop.summary.groups["failed"] == 0


def broken(task):
    failure = Failure(sibling=0, stop_reason=None, error="OSError: no engine", traceback="", turns=0)
    gone = lost_model(task)
    return replace(gone, group=replace(gone.group, failures=(failure,)))


async def test_items_are_not_spent_while_every_group_fails_and_are_tried_again_when_one_works(
    trained, tmp_path
):
    world = World()

    async def run_group(task):
        world.started.append(task.item_id)
        return broken(task) if len(world.started) <= BRAKE_AFTER else group_for(task)

    world.run_group = run_group
    async with serving(trained, tmp_path, world, max_waiting=99) as loop:
        run = asyncio.create_task(loop.run())
        await until(lambda: len(world.started) >= 10)
        terminate()
        await run
    assert world.started[:10] == ["a", "b", "c", "a", "b", "a", "b", "c", "a", "c"]
    assert "OSError: no engine; the next one starts in" in loop.shown.getvalue()


async def test_items_that_failed_with_everything_else_are_left_to_the_next_serve(trained, tmp_path):
    world, again = World(), World()

    async def run_group(task):
        return broken(task)

    world.run_group = run_group
    async with serving(trained, tmp_path, world) as loop:
        run = asyncio.create_task(loop.run())
        await until(lambda: loop.summary.groups["failed"] >= BRAKE_AFTER)
        terminate()
        assert await run == 0
    async with serving(trained, tmp_path, again) as loop:
        run = asyncio.create_task(loop.run())
        await until(lambda: again.started)
        terminate()
        await run
    assert again.started[0] == ("a", 0)


async def test_groups_without_credit_are_recorded_and_not_delivered(trained, tmp_path):
    world = World()

    async def tied(task):
        return group_for(task, advantages=((0.0,),) * 4, status="no_credit", reason="every advantage is zero")

    world.run_group = tied
    async with serving(trained, tmp_path, world) as loop:
        run = asyncio.create_task(loop.run())
        await until(lambda: loop.summary.groups["no_credit"] > 2)
        terminate()
        await run
        assert loop.delivery.tally.posts == 0


async def test_tokens_that_were_never_sampled_are_refused(trained, tmp_path):
    world = World()

    async def approximate(task):
        made = group_for(task)
        trajectories = tuple(replace(each, exact=False) for each in made.group.trajectories)
        return replace(made, group=replace(made.group, trajectories=trajectories))

    world.run_group = approximate
    async with serving(trained, tmp_path, world) as loop:
        with pytest.raises(ConfigError, match=r"gives no token ids.*--env.allow_approximate_tokens"):
            await loop.run()


async def test_it_ends_with_the_trainers_last_step(api, tmp_path):
    api.start_trainer(num_steps=2)
    world = World()
    async with serving(api, tmp_path, world) as loop:
        run = asyncio.create_task(loop.run())
        for posts in (1, 2):
            await until(lambda posts=posts: loop.delivery.tally.posts >= posts)
            await asyncio.to_thread(api.take_batch)
        assert await run == 0
        assert "the batches of the trainer's 2 steps are made" in loop.shown.getvalue()


async def test_what_the_record_holds_is_delivered_all_the_same(trained, tmp_path):
    # The outbox was lost, or the record comes from `process`: nobody can tell that a trainer has these.
    with Recorder(tmp_path / "r.jsonl") as recorder:
        recorder.append(group_for(GroupTask(item="a", item_id="a", epoch=0)))
        world = World()
        async with serving(trained, tmp_path, world, recorder=recorder) as loop:
            run = asyncio.create_task(loop.run())
            await until(lambda: loop.summary.done)
            terminate()
            await run
    assert world.started[0] == ("a", 0)


async def test_an_api_that_stays_away_ends_it_with_1_on_request_and_keeps_the_groups(api, tmp_path):
    api.start_trainer()
    world = World()
    async with serving(api, tmp_path, world, patience_s=0.5) as loop:
        run = asyncio.create_task(loop.run())
        await until(lambda: loop.delivery.tally.posts)
        await asyncio.to_thread(api.kill)
        assert await run == API_AWAY
    with Outbox(tmp_path / "o.sqlite") as kept:
        assert len(kept) == loop.summary.groups["ok"]


async def test_while_the_api_is_away_groups_go_on_up_to_the_bound(api, tmp_path):
    api.start_trainer()
    world = World()
    async with serving(api, tmp_path, world, max_waiting=6) as loop:
        run = asyncio.create_task(loop.run())
        await until(lambda: loop.delivery.tally.posts)
        await asyncio.to_thread(api.kill)
        await until(lambda: not loop.delivery.online and loop.delivery.waiting == 6)
        terminate()
        assert await run == 0
        assert "6 groups wait for the next serve" in loop.shown.getvalue()


async def test_a_mistake_in_the_environment_ends_it_with_that_mistake(trained, tmp_path):
    world = World()

    async def wrong(task):
        raise ConfigError("no reward")

    world.run_group = wrong
    async with serving(trained, tmp_path, world) as loop:
        with pytest.raises(ConfigError, match="no reward"):
            await loop.run()
