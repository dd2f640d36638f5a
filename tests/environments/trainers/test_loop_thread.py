"""An event loop in a thread, for code that is not async."""

import asyncio
import threading
from contextlib import asynccontextmanager

import pytest

from environments.trainers.loop_thread import OpenInThread


@asynccontextmanager
async def noted(events):
    events.append(("open", threading.current_thread().name))
    try:
        yield "value"
    finally:
        events.append(("closed", threading.current_thread().name))


def test_it_opens_runs_and_closes_in_one_thread_that_is_gone_then():
    events = []
    with OpenInThread(noted(events)) as opened:
        assert opened.value == "value"
        name = opened.run(asyncio.to_thread(lambda: "elsewhere"))
    assert name == "elsewhere"
    assert events == [("open", "turnwise-loop"), ("closed", "turnwise-loop")]
    assert "turnwise-loop" not in {thread.name for thread in threading.enumerate()}


def test_what_the_work_raises_comes_back():
    async def broken():
        raise ValueError("so")

    with OpenInThread(noted([])) as opened, pytest.raises(ValueError, match="so"):
        opened.run(broken())


def test_what_cannot_be_opened_leaves_no_thread():
    @asynccontextmanager
    async def broken():
        raise ValueError("shut")
        yield

    with pytest.raises(ValueError, match="shut"), OpenInThread(broken()):
        pass
    assert "turnwise-loop" not in {thread.name for thread in threading.enumerate()}


def test_work_that_goes_on_is_over_before_it_closes():
    events = []

    async def endless():
        try:
            await asyncio.Event().wait()
        finally:
            events.append(("cancelled", threading.current_thread().name))

    async def begin():
        tasks.append(asyncio.create_task(endless()))
        await asyncio.sleep(0)

    tasks = []
    with OpenInThread(noted(events)) as opened:
        opened.run(begin())
    assert [name for name, _ in events] == ["open", "cancelled", "closed"]
