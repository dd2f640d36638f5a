"""Work that a cancellation must not leave half done."""

import asyncio

import pytest

from tools.waiting import or_undo, to_the_end


async def test_work_goes_on_however_often_its_caller_is_cancelled():
    go, done = asyncio.Event(), []

    async def work():
        await go.wait()
        done.append(True)

    caller = asyncio.create_task(to_the_end(work()))
    for _ in range(3):
        await asyncio.sleep(0)
        caller.cancel()
    await asyncio.sleep(0)
    assert not caller.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert done == [True]


async def test_an_error_of_the_work_goes_before_the_cancellation():
    go = asyncio.Event()

    async def work():
        await go.wait()
        raise OSError("of the work")

    caller = asyncio.create_task(to_the_end(work()))
    await asyncio.sleep(0)
    caller.cancel()
    go.set()
    with pytest.raises(OSError, match="of the work"):
        await caller


async def test_the_result_comes_back():
    assert await to_the_end(asyncio.sleep(0, "made")) == "made"


async def test_what_a_cancelled_caller_would_lose_is_undone():
    go, undone = asyncio.Event(), []

    async def make():
        await go.wait()
        return "made"

    async def undo(made):
        undone.append(made)

    caller = asyncio.create_task(or_undo(make(), undo))
    await asyncio.sleep(0)
    caller.cancel()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert undone == ["made"]
