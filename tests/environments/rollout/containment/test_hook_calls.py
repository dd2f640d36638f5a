"""How an environment's code is called: `def` or `async def`, in which context, on which thread."""

import asyncio
import sqlite3
import threading
import time
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial

import pytest

from environments.rewards.verification_time import off_the_clock
from environments.rollout.containment import hook_threads
from environments.rollout.containment.hook_calls import HookCalls, InFlight
from environments.rollout.containment.hook_threads import HookThreads
from tools.errors import ConfigError, RunError, SandboxCreateError, TimeLimitExceeded, UserCodeBroke

WHO: ContextVar[str] = ContextVar("who", default="nobody")


@pytest.fixture
def in_flight():
    return InFlight(item_id="item", sibling=0)


@pytest.fixture
async def calls(in_flight):
    with HookCalls(in_flight, HookThreads(), hook_timeout_s=30, own_thread=True) as roomy:
        yield roomy


@pytest.fixture
def left_over():
    return HookThreads()


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


async def test_a_hook_over_its_limit_is_cancelled(hurried):
    ended = asyncio.Event()

    async def slow():
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(TimeLimitExceeded, match=r"^slow took longer than 0.2 s \(--env.hook_timeout_s\)$"):
        await hurried.hook("slow", slow)
    assert ended.is_set()


async def test_the_time_of_a_verification_is_not_that_of_the_hook(hurried):
    async def patient():
        with off_the_clock():
            await asyncio.sleep(0.4)
        return "done"

    assert await hurried.hook("patient", patient) == "done"


async def test_what_follows_a_verification_is_within_the_limit_of_the_hook(hurried):
    async def slow():
        with off_the_clock():
            await asyncio.sleep(0.4)
        await asyncio.Event().wait()

    with pytest.raises(TimeLimitExceeded, match=r"slow took longer than 0\.2 s"):
        await hurried.hook("slow", slow)


async def test_a_hook_that_waits_for_another_one_is_not_on_the_clock_during_its_verification(hurried):
    async def inner():
        with off_the_clock():
            await asyncio.sleep(0.4)
        return "done"

    assert await hurried.hook("outer", partial(hurried.hook, "inner", inner)) == "done"


async def test_a_thread_that_goes_on_is_counted_until_it_ends(hurried, left_over):
    go_on = threading.Event()
    with pytest.raises(TimeLimitExceeded, match="its thread goes on"):
        await hurried.hook("slow", go_on.wait)
    assert left_over.abandoned == 1
    go_on.set()
    async with asyncio.timeout(60):
        while left_over.abandoned:  # noqa: ASYNC110  # a thread's end is no event
            await asyncio.sleep(0.01)


async def test_an_abandoned_thread_ends_once_its_call_and_its_rollout_have_ended(hurried):
    go_on, threads = threading.Event(), []

    def slow():
        threads.append(threading.current_thread())
        go_on.wait()

    with hurried, pytest.raises(TimeLimitExceeded):
        await hurried.hook("slow", slow)
    go_on.set()
    await asyncio.to_thread(threads[0].join, 60)
    assert not threads[0].is_alive()


def test_too_many_abandoned_calls_end_the_run(left_over):
    for _ in range(hook_threads.MOST_ABANDONED):
        left_over.abandon("compute_reward took longer than 1 s", lambda: True)
    left_over.refuse_more("mine")
    left_over.abandon("compute_reward took longer than 1 s", lambda: True)
    with pytest.raises(RunError, match=r"'mine': 33 calls of its code still run .* compute_reward took"):
        left_over.refuse_more("mine")


# Threads that rollouts share.


def all_at_once(threads, count):
    return [
        HookCalls(InFlight(item_id="i", sibling=each), threads, hook_timeout_s=30) for each in range(count)
    ]


async def test_def_calls_take_any_free_thread_and_wait_while_all_are_busy(monkeypatch, left_over):
    monkeypatch.setattr(hook_threads, "_MOST_SHARED", 3)
    used, three = set(), threading.Barrier(3, timeout=60)

    def note():
        used.add(threading.get_ident())
        three.wait()  # as many are at work at once

    await asyncio.gather(*(each.hook("hook", note) for each in all_at_once(left_over, 21)))
    assert len(used) == 3


async def test_waiting_for_a_thread_is_not_on_the_clock_of_a_hook(monkeypatch, left_over):
    monkeypatch.setattr(hook_threads, "_MOST_SHARED", 1)
    calls = [HookCalls(InFlight(item_id="i", sibling=0), left_over, hook_timeout_s=1.2) for _ in range(8)]
    await asyncio.gather(*(each.hook("hook", time.sleep, 0.2) for each in calls))
    assert left_over.abandoned == 0


async def test_a_thread_that_hangs_is_replaced(monkeypatch, hurried, left_over):
    monkeypatch.setattr(hook_threads, "_MOST_SHARED", 1)
    go_on = threading.Event()
    waiting = asyncio.create_task(all_at_once(left_over, 1)[0].hook("hook", threading.get_ident))
    with pytest.raises(TimeLimitExceeded):
        await hurried.hook("slow", go_on.wait)
    assert await waiting
    go_on.set()


async def test_threads_that_were_asked_nothing_end(monkeypatch, hurried, left_over):
    monkeypatch.setattr(hook_threads, "_IDLE_S", 0.01)
    thread = await hurried.hook("hook", threading.current_thread)
    await asyncio.to_thread(thread.join, 60)
    assert not thread.is_alive()
    assert await hurried.hook("hook", lambda: "another") == "another"


async def test_where_the_system_gives_no_more_threads_calls_wait_for_those_there_are(monkeypatch, left_over):
    started, start, most = [], threading.Thread.start, 20

    def refusing(thread):
        if sum(each.is_alive() for each in started) >= most:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refusing)
    shared = [each.hook("hook", time.sleep, 0.01) for each in all_at_once(left_over, 60)]
    await asyncio.gather(*shared)

    async def pinned(sibling):
        in_flight = InFlight(item_id="i", sibling=sibling)
        with HookCalls(in_flight, left_over, hook_timeout_s=30, own_thread=True) as own:
            return await own.hook("prepare", lambda: "made")

    assert await asyncio.gather(*map(pinned, range(30))) == ["made"] * 30
    most = 0
    with pytest.raises(RunError, match=r"no thread for `def` hooks \(ulimit -u\)"):
        HookThreads().submit(int)


async def test_an_iterators_end_on_a_thread_is_an_error(calls):
    async def hook():
        await asyncio.to_thread(next, iter(()))

    with pytest.raises(RuntimeError, match="raised StopIteration"):
        await calls.hook("hook", hook)


# Sandboxes.


class Opener:
    """A backend that notes what is open, and does at each step what a test says."""

    def __init__(self, opening=None, closing=None):
        self.open, self._opening, self._closing = 0, opening, closing

    @asynccontextmanager
    async def __call__(self):
        self.open += 1
        try:
            if self._opening is not None:
                await self._opening()
            yield "sandbox"
            if self._closing is not None:
                await self._closing()
        finally:
            self.open -= 1


async def raising(error):
    raise error


async def use(opener, body=None, limit_s=5.0):
    with HookCalls(InFlight(item_id="i", sibling=0), HookThreads(), hook_timeout_s=limit_s) as calls:
        async with calls.sandbox(opener) as sandbox:
            if body is not None:
                await body()
            return sandbox


async def test_a_sandbox_that_does_not_close_as_it_should_costs_nothing_that_was_scored(caplog):
    for error in (OSError("busy"), asyncio.CancelledError(), SystemExit(0)):
        caplog.clear()
        assert await use(Opener(closing=partial(raising, error))) == "sandbox"
        assert "did not close as it should" in caplog.text


async def test_what_keeps_a_sandbox_from_opening_comes_out():
    with pytest.raises(SandboxCreateError):
        await use(Opener(opening=lambda: raising(SandboxCreateError("no"))))
    with pytest.raises(UserCodeBroke):
        await use(Opener(opening=lambda: raising(asyncio.CancelledError())))


async def test_opening_a_sandbox_has_a_limit():
    opener = Opener(opening=asyncio.Event().wait)
    with pytest.raises(TimeLimitExceeded, match=r"opening a sandbox took longer than 0.1 s"):
        await use(opener, limit_s=0.1)
    assert opener.open == 0


async def test_an_error_of_the_rollout_is_not_hidden_by_one_of_the_closing():
    with pytest.raises(ValueError, match="mine"):
        await use(Opener(closing=lambda: raising(OSError())), body=lambda: raising(ValueError("mine")))


@pytest.mark.parametrize("step", ["opening", "body", "closing"])
async def test_a_cancellation_at_any_step_leaves_no_sandbox_open(step):
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def wait():
        reached.set()
        await go_on.wait()

    opener = Opener(**{step: wait}) if step != "body" else Opener()
    using = asyncio.create_task(use(opener, body=wait if step == "body" else None))
    await reached.wait()
    using.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await using
    assert opener.open == 0
