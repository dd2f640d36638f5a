"""Groups that fail one after another: when `process` stops, how `serve` slows down, which items are spent."""

import asyncio
import itertools
from dataclasses import replace

import pytest

from environments.rollout.items.tasks import GroupTask
from environments.run.group_source import FIRST_PAUSE_S, LONGEST_PAUSE_S, note_of
from environments.serve.serve_loop import OPEN_AFTER, CircuitBreaker
from environments.testing import group_of
from environments.trajectory import CreditedGroup, Failure, TrajectoryGroup
from tests.environments.serve.serve_world import World as ServeWorld
from tests.environments.serve.serve_world import lost_model, serving, terminate, until


def task(number):
    return number, GroupTask(item={"n": number}, item_id=str(number), epoch=0)


WORKED = group_of([[1.0]])
FAILED = TrajectoryGroup(
    group_id="g",
    env="e",
    item_id="i",
    epoch=0,
    trajectories=(),
    failures=(Failure(sibling=0, stop_reason=None, error="NameError: no engine", traceback="", turns=0),),
)


def noted(group, reason=None):
    status = "ok" if group.trajectories else "failed"
    advantages = tuple((0.0,) * len(each.turns) for each in group.trajectories)
    return note_of(
        CreditedGroup(
            group=group, advantages=advantages, policy="p", estimator="grpo", status=status, reason=reason
        )
    )


class World:
    """A circuit breaker over endless tasks, its clock and its lines."""

    def __init__(self):
        self.now, self.lines = 0.0, []
        self.breaker = CircuitBreaker(map(task, itertools.count()), self.lines.append, clock=lambda: self.now)

    def fails(self, times=1):
        for _ in range(times):
            assert self.breaker.finish(self.breaker.take(), noted(FAILED)) == []

    def works(self):
        return self.breaker.finish(self.breaker.take(), noted(WORKED))


@pytest.fixture
def world():
    return World()


def test_an_item_that_failed_on_its_own_counts_as_failed_once_another_works(world):
    world.fails(OPEN_AFTER - 1)
    assert world.works() == [0, 1, 2]
    assert world.breaker.take() == task(4)


def test_items_that_failed_while_everything_did_are_tried_once_more_before_others(world):
    world.fails(OPEN_AFTER)
    assert world.works() == []
    assert [world.breaker.take()[0] for _ in range(5)] == [0, 1, 2, 3, 5]


def test_an_item_gets_no_third_try_in_a_second_streak(world):
    world.fails(OPEN_AFTER)
    world.works()
    world.fails(OPEN_AFTER)
    assert world.works() == [0, 1, 2, 3]


def test_a_group_from_before_the_streak_does_not_end_it(world):
    early = world.breaker.take()
    world.fails(OPEN_AFTER)
    assert world.breaker.finish(early, noted(WORKED)) == []
    assert not world.breaker.may_start
    assert world.works() == []
    assert [world.breaker.take()[0] for _ in range(4)] == [1, 2, 3, 4]


def test_pauses_grow_up_to_the_longest_and_let_one_group_start_each(world):
    world.fails(OPEN_AFTER)
    pauses = []
    for _ in range(7):
        before = world.now
        while not world.breaker.may_start:
            world.now += FIRST_PAUSE_S / 4
        pauses.append(world.now - before)
        world.fails()
        assert not world.breaker.may_start
    assert pauses == [1, 2, 4, 8, 16, LONGEST_PAUSE_S, LONGEST_PAUSE_S]


def test_it_lets_every_group_start_until_they_all_fail_and_again_once_one_works(world):
    world.fails(OPEN_AFTER - 1)
    assert world.breaker.may_start
    world.fails()
    assert not world.breaker.may_start
    world.works()
    assert world.breaker.may_start


def test_it_says_what_failed_and_when_it_goes_on(world):
    world.fails(OPEN_AFTER)
    world.works()
    assert world.lines == [
        "4 groups in a row were lost whole, the last one because of NameError: no engine; the next "
        "one starts in 1 s; no item is spent",
        "4 groups in a row were lost whole, the last one because of NameError: no engine; the next "
        "one starts in 2 s; no item is spent",
        "a group has worked; 4 items that failed meanwhile are tried once more",
    ]


def broken(task):
    failure = Failure(sibling=0, stop_reason=None, error="OSError: no engine", traceback="", turns=0)
    gone = lost_model(task)
    return replace(gone, group=replace(gone.group, failures=(failure,)))


async def test_items_that_failed_with_everything_else_are_left_to_the_next_serve(trained, tmp_path):
    world, again = ServeWorld(), ServeWorld()

    async def run_group(task):
        return broken(task)

    world.run_group = run_group
    async with serving(trained, tmp_path, world) as loop:
        run = asyncio.create_task(loop.run())
        await until(lambda: loop.summary.groups["failed"] >= OPEN_AFTER)
        terminate()
        assert await run == 0
    async with serving(trained, tmp_path, again) as loop:
        run = asyncio.create_task(loop.run())
        await until(lambda: again.started)
        terminate()
        await run
    assert again.started[0] == ("a", 0)
