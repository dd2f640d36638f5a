"""Whose time it is: of the innermost call, on a clock that stands still unless a test moves it."""

import asyncio
import contextvars
import threading

import pytest

from tools import time_profile
from tools.time_profile import MAX_NAMES, OTHER, CallTimes, Profiler, inherit_profile, measure, profiled


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now

    def passes(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(time_profile, "monotonic", clock)
    return clock


@pytest.fixture
def profiler(clock):
    profiler = Profiler()
    with profiled(profiler):
        yield profiler


def times(count, total_s, own_s, max_s):
    return CallTimes(count=count, total_s=total_s, own_s=own_s, max_s=max_s)


def test_calls_of_one_name_are_counted_and_summed(profiler, clock):
    for seconds in (2, 5):
        with measure("tool look"):
            clock.passes(seconds)
    assert profiler.profile().calls == {"tool look": times(2, 7, 7, 5)}


def test_what_a_call_asks_for_is_not_its_own_time(profiler, clock):
    with measure("score_turn"):
        clock.passes(1)
        with measure("judge"):
            clock.passes(10)
        clock.passes(2)
    assert profiler.profile().calls == {"score_turn": times(1, 13, 3, 13), "judge": times(1, 10, 10, 10)}


async def test_what_a_call_left_running_goes_on_beside_the_next_and_all_sum_to_the_wall_clock(
    profiler, clock
):
    go_on = asyncio.Event()

    async def judge():
        with measure("judge"):
            await go_on.wait()

    with measure("score_turn"):
        left = asyncio.create_task(judge())
        await asyncio.sleep(0)
        clock.passes(2)
    with measure("tool look"):
        clock.passes(6)
    clock.passes(8)
    go_on.set()
    await left
    profile = profiler.profile()
    own = {name: each.own_s for name, each in profile.calls.items()}
    assert own == {"score_turn": 0, "judge": 2 + 3 + 4, "tool look": 3}
    assert profile.wall_s - sum(own.values()) == 4


async def test_a_call_in_a_task_of_another_context_is_within_the_one_that_handed_it_on(profiler, clock):
    async def asking():
        with measure("judge"):
            clock.passes(3)

    elsewhere = contextvars.Context()
    with measure("score_turn"):
        await asyncio.get_running_loop().create_task(inherit_profile(asking()), context=elsewhere)
    assert profiler.profile().calls["score_turn"].own_s == 0


def test_another_thread_measures_nothing(profiler, clock):
    def hook():
        with measure("judge"):
            pass

    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(hook,))
    thread.start()
    thread.join()
    assert profiler.profile().calls == {}


def test_names_are_few_whatever_comes(profiler, clock):
    for number in range(3 * MAX_NAMES):
        with measure(f"tool {number}"):
            clock.passes(1)
    calls = profiler.profile().calls
    assert len(calls) == MAX_NAMES + 1
    assert (calls[OTHER].count, sum(each.own_s for each in calls.values())) == (2 * MAX_NAMES, 3 * MAX_NAMES)


@pytest.mark.parametrize("name", ["\ud800", "a\nb\x1b[31m", "x" * 10_000], ids=["surrogate", "lines", "long"])
def test_a_name_is_text_that_a_record_and_a_screen_can_hold(profiler, name):
    with measure(name):
        pass
    (kept,) = profiler.profile().calls
    assert len(kept.encode()) <= 60
    assert kept.isprintable()


def test_a_call_that_raises_is_counted(profiler, clock):
    def breaking():
        with measure("prepare"):
            clock.passes(1)
            raise KeyError

    with pytest.raises(KeyError):
        breaking()
    with measure("teardown"):
        clock.passes(1)
    assert profiler.profile().calls == {"prepare": times(1, 1, 1, 1), "teardown": times(1, 1, 1, 1)}


def test_nothing_is_measured_where_nobody_asked():
    with profiled(None), measure("hook") as measured:
        assert measured is None
