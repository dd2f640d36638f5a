"""A sandbox that opens or closes badly costs what it must, and is never left open."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from environments.containment.owned import owned_sandbox
from environments.containment.user_code import Abandoned
from tools.errors import SandboxCreateError, TimeLimitExceeded, UserCodeBroke


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


async def use(opener, limit_s=5.0, body=None):
    async with owned_sandbox(opener, Abandoned(), limit_s=limit_s) as sandbox:
        if body is not None:
            await body()
        return sandbox


@pytest.mark.parametrize(
    "error",
    [OSError("busy"), asyncio.CancelledError(), SystemExit(0)],
    ids=lambda error: type(error).__name__,
)
async def test_a_sandbox_that_does_not_close_as_it_should_costs_nothing_that_was_scored(error, caplog):
    opener = Opener(closing=lambda: raising(error))
    assert await use(opener) == "sandbox"
    assert "did not close as it should" in caplog.text


@pytest.mark.parametrize(
    ("error", "comes_out"),
    [(SandboxCreateError("no"), SandboxCreateError), (asyncio.CancelledError(), UserCodeBroke)],
    ids=["an error", "a cancellation"],
)
async def test_what_keeps_a_sandbox_from_opening_comes_out(error, comes_out):
    with pytest.raises(comes_out):
        await use(Opener(opening=lambda: raising(error)))


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
