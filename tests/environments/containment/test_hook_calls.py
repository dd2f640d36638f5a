"""How an environment's code is called: `def` or `async def`, in which context, on which thread."""

import asyncio
import sqlite3
import threading
from contextvars import ContextVar
from functools import partial

import pytest

from environments.containment import user_code
from environments.containment.hook_calls import HookCalls
from environments.containment.user_code import Abandoned, InFlight
from tools.errors import ConfigError, RunError, TimeLimitExceeded, UserCodeBroke

WHO: ContextVar[str] = ContextVar("who", default="nobody")


@pytest.fixture
def in_flight():
    return InFlight(item_id="item", sibling=0)


@pytest.fixture
def calls(in_flight):
    roomy = HookCalls(in_flight, Abandoned(), hook_timeout_s=30)
    yield roomy
    roomy.__exit__(None, None, None)


@pytest.fixture
def left_over():
    return Abandoned()


@pytest.fixture
def hurried(in_flight, left_over):
    return HookCalls(in_flight, left_over, hook_timeout_s=0.2)


async def given(value):
    return value


class Called:
    async def __call__(self, value):
        return value


class CalledPlainly:
    def __call__(self, value):
        return given(value)


@pytest.mark.parametrize(
    "function",
    [given, lambda value: value, lambda value: given(value), partial(given), Called(), CalledPlainly()],
    ids=["async def", "def", "def that gives an awaitable", "partial", "object", "object, plain"],
)
async def test_every_kind_of_function_gives_what_it_gives(calls, function):
    assert await calls.hook("hook", function, 5) == 5


async def test_a_def_runs_on_one_thread_and_an_async_def_on_that_of_the_loop(calls):
    threads = [await calls.hook("hook", threading.get_ident) for _ in range(3)]
    assert len({*threads, threading.get_ident()}) == 2

    async def here():
        return threading.get_ident()

    assert await calls.hook("hook", here) == threading.get_ident()


async def test_a_database_that_one_def_opened_can_be_used_by_the_next(calls):
    database = await calls.hook("setup", sqlite3.connect, ":memory:")
    assert (await calls.hook("reward", lambda: list(database.execute("select 1")))) == [(1,)]
    await calls.hook("teardown", database.close)


async def test_a_context_variable_that_a_hook_sets_is_there_for_the_next_and_for_threads(calls):
    async def setting():
        WHO.set("prepare")

    async def reading():
        return WHO.get()

    await calls.hook("prepare", setting)
    assert await calls.hook("reward", reading) == await calls.hook("reward", WHO.get) == "prepare"
    assert WHO.get() == "nobody"


async def test_an_await_that_was_left_out_is_said(calls):
    async def hook():
        return given(1)

    with pytest.raises(ConfigError, match="score_turn gave a call that nobody awaited, given; write `await`"):
        await calls.hook("score_turn", hook)


async def test_what_is_going_on_can_be_seen(calls, in_flight):
    async def look():
        return in_flight.doing

    assert await calls.hook("score_turn", look) == "score_turn"


async def test_what_is_no_exception_comes_out_as_one_with_its_cause(calls):
    async def leave():
        raise SystemExit(3)

    with pytest.raises(UserCodeBroke) as caught:
        await calls.hook("hook", leave)
    assert isinstance(caught.value.__cause__, SystemExit)


async def test_an_error_of_a_thread_is_itself(calls):
    def broken():
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await calls.hook("hook", broken)


async def test_a_hook_over_its_limit_is_cancelled(hurried):
    ended = asyncio.Event()

    async def slow():
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(TimeLimitExceeded, match=r"slow took longer than 0.2 s \(--env.hook_timeout_s\)$"):
        await hurried.hook("slow", slow)
    assert ended.is_set()


async def test_a_thread_that_goes_on_is_counted_until_it_ends(hurried, left_over):
    go_on = threading.Event()
    with pytest.raises(TimeLimitExceeded, match="its thread goes on"):
        await hurried.hook("slow", go_on.wait)
    assert left_over.count == 1
    go_on.set()
    async with asyncio.timeout(5):
        while left_over.count:  # noqa: ASYNC110  # a thread's end is no event
            await asyncio.sleep(0.01)


async def test_after_an_abandoned_thread_there_is_another(hurried):
    go_on = threading.Event()
    with pytest.raises(TimeLimitExceeded):
        await hurried.hook("slow", go_on.wait)
    assert await hurried.run(lambda: "on", doing="hook") == "on"
    go_on.set()


async def test_an_abandoned_thread_ends_once_its_call_and_its_rollout_have_ended(hurried):
    go_on, threads = threading.Event(), []

    def slow():
        threads.append(threading.current_thread())
        go_on.wait()

    with pytest.raises(TimeLimitExceeded):
        await hurried.hook("slow", slow)
    hurried.__exit__(None, None, None)
    go_on.set()
    await asyncio.to_thread(threads[0].join, 5)
    assert not threads[0].is_alive()


def test_too_many_abandoned_calls_end_the_run(left_over):
    for _ in range(user_code.MOST):
        left_over.add("compute_reward took longer than 1 s", lambda: True)
    left_over.refuse_more("mine")
    left_over.add("compute_reward took longer than 1 s", lambda: True)
    with pytest.raises(RunError, match=r"'mine': 33 calls of its code still run .* compute_reward took"):
        left_over.refuse_more("mine")
