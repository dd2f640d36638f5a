"""A rollout's state: what `prepare` gives, what closes it; and who gets the context."""

import asyncio
import sqlite3
import threading
import time
from contextlib import asynccontextmanager, contextmanager

import anyio
import pytest

from environments.rollout.hooks import takes_context
from environments.rollout.lifecycle import rollout_hooks
from environments.trajectory import Message
from tests.environments.talking import TASK, Talking, made, played
from tests.tables import cases


def env_of(base=Talking, /, *, settings=None, **hooks):
    return made(type("Env", (base,), {"plays": ("hello",), **hooks}), **(settings or {}))


# State.


@pytest.mark.parametrize("kind", ["value", "async value", "generator", "async generator"])
async def test_what_prepare_gives_is_the_state_in_every_later_hook(kind):
    def value(self, item, sandbox):
        return {"turns": 0}

    async def async_value(self, item, sandbox):
        return {"turns": 0}

    def generator(self, item, sandbox):
        yield {"turns": 0}

    async def async_generator(self, item, sandbox):
        yield {"turns": 0}

    states = []

    def noted(given):
        def hook(self, *args):
            states.append(args[-1].state)
            return given(*args)

        return hook

    def format_prompt(self, item, ctx):
        states.append(ctx.state)
        return "begin"

    def state_key(self, item, turn, ctx):
        states.append(ctx.state)
        return str(ctx.state)

    env = env_of(
        prepare=locals()[kind.replace(" ", "_")],
        format_prompt=format_prompt,
        state_key=state_key,
        respond=noted(lambda item, turn, ctx: None),
        score_turn=noted(lambda item, turn, ctx: 1.0),
        train_turn=noted(lambda item, turn, ctx: True),
        compute_turn_rewards=noted(lambda item, trajectory, ctx: [1.0]),
        compute_outcome=noted(lambda item, trajectory, ctx: None),
    )
    assert (await played(env)).score == 1.0
    assert len(states) == 8
    assert all(state is states[0] == {"turns": 0} for state in states)


@pytest.mark.parametrize("kind", ["def", "async def"])
async def test_what_follows_the_yield_runs_after_the_rewards(kind):
    called = []

    def compute_outcome(self, item, trajectory, ctx):
        called.append("rewards")

    await played(env_of(prepare=preparing(called, kind), compute_outcome=compute_outcome))
    assert called == ["rewards", "closed"]


def breaking(*_):
    raise ZeroDivisionError("mine")


def preparing(closed, kind="def"):
    def prepare(self, item, sandbox):
        database = sqlite3.connect(":memory:")  # of this thread alone
        yield "state"
        database.close()
        closed.append("closed")

    async def prepare_async(self, item, sandbox):
        yield "state"
        await asyncio.sleep(0)
        closed.append("closed")

    return prepare if kind == "def" else prepare_async


@cases("kind", ["def", "async def"])
@cases("broken", ["format_prompt", "respond", "score_turn", "compute_outcome", "limits_for"])
async def test_the_state_is_closed_although_a_hook_broke(kind, broken):
    closed = []
    hook = (lambda self, item: breaking()) if broken in ("format_prompt", "limits_for") else breaking
    failure = await played(env_of(prepare=preparing(closed, kind), **{broken: hook}))
    assert failure.error_class == "ZeroDivisionError"
    assert closed == ["closed"]


async def hanging(self, item, turn, ctx):
    await asyncio.Event().wait()


def blocking(self, item, turn, ctx):
    time.sleep(1)  # far longer than its limit, on a busy machine too


@pytest.mark.parametrize("kind", ["def", "async def"])
@pytest.mark.parametrize("respond", [hanging, blocking], ids=["hangs", "blocks"])
async def test_the_state_is_closed_after_a_hook_took_too_long(kind, respond):
    closed = []
    env = env_of(prepare=preparing(closed, kind), respond=respond, settings={"hook_timeout_s": 0.1})
    failure = await played(env)
    assert "respond took longer than 0.1 s" in failure.error
    assert closed == ["closed"]


@pytest.mark.parametrize("kind", ["def", "async def"])
@pytest.mark.parametrize("respond", [hanging, blocking], ids=["hangs", "blocks"])
async def test_the_state_is_closed_when_the_rollout_is_cancelled(kind, respond):
    closed, asked, loop = [], asyncio.Event(), asyncio.get_running_loop()

    async def hangs(self, *args):
        asked.set()
        await respond(self, *args)

    def blocks(self, *args):
        loop.call_soon_threadsafe(asked.set)
        respond(self, *args)

    env = env_of(prepare=preparing(closed, kind), respond=hangs if respond is hanging else blocks)
    group = asyncio.ensure_future(env.rollout_group(TASK, 1))
    await asked.wait()
    group.cancel()
    with pytest.raises(asyncio.CancelledError):
        await group
    assert closed == ["closed"]


async def test_a_cancellation_while_the_state_is_closed_waits_for_it():
    closing, closed = asyncio.Event(), []

    async def prepare(self, item, sandbox):
        yield "state"
        closing.set()
        await asyncio.sleep(0.1)
        closed.append("closed")

    group = asyncio.ensure_future(env_of(prepare=prepare).rollout_group(TASK, 1))
    await closing.wait()
    group.cancel()
    with pytest.raises(asyncio.CancelledError):
        await group
    assert closed == ["closed"]


async def test_a_state_is_closed_on_its_thread_although_it_was_over_a_limit_when_it_was_made():
    closed, go_on, loop = [], threading.Event(), asyncio.get_running_loop()

    def prepare(self, item, sandbox):
        database = sqlite3.connect(":memory:")
        loop.call_soon_threadsafe(loop.call_later, 1, go_on.set)
        go_on.wait()
        yield database
        database.close()
        closed.append("closed")

    env = env_of(prepare=prepare, settings={"hook_timeout_s": 0.1})
    failure = await played(env)
    assert (failure.error_class, closed) == ("TimeLimitExceeded", ["closed"])


async def test_what_an_async_generator_entered_is_left_by_the_same_task():
    tasks = []

    async def prepare(self, item, sandbox):
        tasks.append(asyncio.current_task())
        async with anyio.create_task_group():
            yield "state"
        tasks.append(asyncio.current_task())

    assert (await played(env_of(prepare=prepare))).score == 1.0
    assert tasks[0] is tasks[1]


async def test_a_task_group_around_the_yield_sees_its_child_break(caplog):
    async def breaks():
        raise ZeroDivisionError("in the background")

    async def prepare(self, item, sandbox):
        async with asyncio.TaskGroup() as group:
            group.create_task(breaks())
            yield "state"

    assert (await played(env_of(prepare=prepare))).score == 1.0
    assert "prepare, after its yield: ZeroDivisionError: in the background" in caplog.text


@pytest.mark.parametrize("decorate", [contextmanager, asynccontextmanager])
async def test_a_context_manager_that_nobody_enters_is_refused(decorate):
    @decorate
    def prepare(self, item, sandbox):
        yield "state"

    assert "prepare gave a context manager" in (await played(env_of(prepare=prepare))).error


async def test_a_state_that_a_def_was_making_when_it_was_cancelled_is_closed():
    closed, asked, loop = [], asyncio.Event(), asyncio.get_running_loop()

    def prepare(self, item, sandbox):
        loop.call_soon_threadsafe(asked.set)
        time.sleep(0.2)
        yield "state"
        closed.append("closed")

    group = asyncio.ensure_future(env_of(prepare=prepare).rollout_group(TASK, 1))
    await asked.wait()
    group.cancel()
    with pytest.raises(asyncio.CancelledError):
        await group
    assert closed == ["closed"]


async def closes_badly(self, item, sandbox):
    yield "state"
    raise ZeroDivisionError("the browser is gone")


async def test_a_state_that_cannot_be_closed_is_told_and_costs_no_scored_rollout(caplog):
    trajectory = await played(env_of(prepare=closes_badly))
    assert trajectory.score == 1.0
    told = (
        "item one: prepare, after its yield: ZeroDivisionError: the browser is gone (test_rollout_hooks.py:"
    )
    assert told in caplog.text


async def test_a_state_that_cannot_be_closed_hides_no_other_error():
    failure = await played(env_of(prepare=closes_badly, score_turn=lambda self, *_: int("mine")))
    assert failure.error_class == "ValueError"


async def test_a_state_that_hangs_when_it_is_closed_is_abandoned(monkeypatch, caplog):
    monkeypatch.setattr(rollout_hooks, "_AFTERWARDS_S", 0.1)

    async def prepare(self, item, sandbox):
        yield "state"
        await asyncio.Event().wait()

    assert (await played(env_of(prepare=prepare))).score == 1.0
    assert "TimeLimitExceeded: prepare, after its yield took longer than 0.1 s" in caplog.text


def twice(self, item, sandbox):
    yield 1
    yield 2


async def never_async(self, item, sandbox):
    if item is None:
        yield 1


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (twice, "prepare goes on to another `yield`; a generator yields the state once"),
        (never_async, "prepare ended without `yield`; a generator yields the state once"),
    ],
    ids=["twice", "never"],
)
async def test_a_generator_that_does_not_yield_once_is_refused(prepare, said):
    failure = await played(env_of(prepare=prepare))
    assert failure.error == f"ConfigError: environment 'talking': {said}"


# The context.


@cases(
    ("hook", "takes"),
    [
        (lambda item: 1, False),
        (lambda item, ctx: 1, True),
        (lambda item, context: 1, True),
        (lambda item, ctx=None: 1, True),
        (lambda item, style="plain": 1, False),
        (lambda item, *more: 1, False),
        (lambda item, *, ctx=None: 1, False),
    ],
    ids=["item", "ctx", "another name", "with a default", "a default of its own", "star", "by keyword"],
)
def test_a_hook_takes_the_context_where_it_names_it_or_must_have_it(hook, takes):
    assert takes_context(hook, 1) == takes


async def test_the_prompt_may_be_slow_async_and_made_of_the_state():
    async def format_prompt(self, item, ctx):
        await asyncio.sleep(0.01)
        return [Message(role="user", content=f"{ctx.item['id']}: {ctx.state}")]

    trajectory = await played(env_of(prepare=lambda self, *_: "a board", format_prompt=format_prompt))
    assert trajectory.prompt == (Message(role="user", content="one: a board"),)


async def test_siblings_have_seeds_of_their_own_and_one_of_their_group():
    seeds = []

    def prepare(self, item, sandbox, ctx):
        seeds.append((ctx.seed, ctx.group_seed))

    group = await env_of(prepare=prepare).rollout_group(TASK, 3)
    assert sorted(seed for seed, _ in seeds) == sorted(each.seed for each in group.trajectories)
    assert len({seed for seed, _ in seeds}) == 3
    assert len({group_seed for _, group_seed in seeds}) == 1
