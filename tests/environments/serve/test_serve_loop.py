"""The serving loop against the real API: what it starts, retries, pauses for, and how it ends."""

import asyncio
from dataclasses import replace

import pytest

from environments.record.recorder import Recorder, read_groups
from environments.serve.outbox import Outbox
from environments.serve.serve_loop import API_AWAY, STOPPED
from tests.environments.serve.serve_world import World, group_for, lost_model, serving, terminate, until
from tools.errors import ConfigError


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


@pytest.mark.parametrize("survivors", [0, 2])
async def test_while_the_model_server_is_down_no_item_is_spent_and_what_is_left_of_a_group_is_no_fair_sample(
    trained, tmp_path, survivors
):
    world = World()
    world.model_down = True

    async def some_are_left(task):
        world.started.append((task.item_id, task.epoch))
        whole = group_for(task)
        if not world.model_down:
            return whole
        if not survivors:
            return lost_model(task)
        left = replace(whole.group, trajectories=whole.group.trajectories[:survivors])
        group = replace(left, failures=lost_model(task).group.failures * 2)
        return replace(whole, group=group, advantages=whole.advantages[:survivors])

    world.run_group = some_are_left
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


async def test_groups_that_are_refused_alike_end_it_with_1_and_what_to_do(trained, tmp_path):
    world, reason = World(), "no outcome beside siblings with one: siblings {}; missing_outcome says what"

    async def refused(task):
        why = reason.format(len(world.started))
        return group_for(task, advantages=((0.0,),) * 4, status="failed", reason=why)

    world.run_group = refused
    async with serving(trained, tmp_path, world) as loop:
        assert await loop.run() == STOPPED
        (line,) = [each for each in loop.shown.getvalue().splitlines() if each.startswith("stopped: ")]
    assert "3 groups were refused alike, and none can be learned from: no outcome beside" in line
    assert "--env.missing_outcome" in line


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


async def test_a_group_that_no_trainer_can_read_is_recorded_as_failed_and_the_loop_goes_on(trained, tmp_path):
    world = World()

    async def second_is_wrong(task):
        made = await World.run_group(world, task)
        if len(world.started) != 2:
            return made
        rows = (replace(made.group.trajectories[0].rows[0], token_ids=(-7, -7)),)
        wrong = tuple(replace(each, rows=rows) for each in made.group.trajectories)
        return replace(made, group=replace(made.group, trajectories=wrong))

    world.run_group = second_is_wrong
    with Recorder(tmp_path / "r.jsonl") as recorder:
        async with serving(trained, tmp_path, world, recorder=recorder) as loop:
            run = asyncio.create_task(loop.run())
            await until(lambda: loop.summary.done >= 3)
            terminate()
            assert await run == 0
            assert loop.delivery.tally.rejected == 1
    groups = list(read_groups(tmp_path / "r.jsonl"))[:3]
    assert [group.status for group in groups] == ["ok", "failed", "ok"]
    assert groups[1].reason.startswith("no trainer can read it: row 0 of 4: tokens must be")


async def test_a_worker_that_vanishes_does_not_end_it_with_0(trained, tmp_path):
    world = World()

    async def cancelled(task):
        raise asyncio.CancelledError

    world.run_group = cancelled
    async with serving(trained, tmp_path, world) as loop:
        assert await loop.run() == STOPPED
        assert "stopped: a group was cancelled by code that nobody asked to" in loop.shown.getvalue()


@pytest.mark.parametrize("part", ["_work", "run"])
async def test_a_part_of_the_loop_that_vanishes_does_not_end_it_with_0(trained, tmp_path, part):
    world = World()

    async def cancel_a_part(task):
        for each in asyncio.all_tasks():
            if each.get_coro().__qualname__ in (f"ServeLoop.{part}", f"Delivery.{part}"):
                each.cancel()
        return group_for(task)

    world.run_group = cancel_a_part
    async with serving(trained, tmp_path, world, grace_s=0.1) as loop:
        run = asyncio.create_task(loop.run())
        run.get_coro().__qualname__ = "the test's own"
        assert await run == STOPPED


async def test_the_first_rollout_goes_alone_and_is_part_of_its_group(trained, tmp_path):
    world = World()
    alone, tasks = [], []

    async def run_first(task):
        assert not tasks
        alone.append(task.item_id)
        return replace(group_for(task, rows=1).group)

    async def run_group(task):
        tasks.append(task)
        return group_for(task)

    world.first, world.run_group = run_first, run_group
    async with serving(trained, tmp_path, world, max_in_flight=4) as loop:
        run = asyncio.create_task(loop.run())
        await until(lambda: len(tasks) > 2)
        terminate()
        await run
    assert alone == ["a"]
    assert [len(task.rolled_out) for task in tasks[:3]] == [1, 0, 0]
    assert [task.item_id for task in tasks[:3]] == ["a", "b", "c"]


async def broken_first(task):
    failure = lost_model(task).group.failures[0]
    broken = replace(failure, stop_reason=None, error_class="KeyError", where="env.py:1 in f")
    return replace(lost_model(task).group, failures=(broken,))


async def test_first_rollouts_that_fail_alike_end_every_start_with_1_and_each_tries_others(trained, tmp_path):
    world, places = World(), []
    world.first = broken_first
    for _ in range(2):
        async with serving(trained, tmp_path, world) as loop:
            assert await loop.run() == STOPPED
            assert "failed alike: KeyError at env.py:1 in f" in loop.shown.getvalue()
            places.append((await loop.delivery.progress())[0])
    assert (places, world.started) == ([3, 6], [])


async def test_where_something_worked_bad_first_rollouts_slow_it_down_and_spend_no_item(trained, tmp_path):
    world = World()
    async with serving(trained, tmp_path, world) as loop:
        run = asyncio.create_task(loop.run())
        await until(lambda: loop.summary.groups["ok"])
        terminate()
        await run
        before = await loop.delivery.progress()
    world.first = broken_first
    async with serving(trained, tmp_path, world, max_waiting=100) as loop:
        run = asyncio.create_task(loop.run())
        await until(lambda: "4 groups in a row were lost whole" in loop.shown.getvalue())
        terminate()
        assert await run == 0
        assert await loop.delivery.progress() == before
