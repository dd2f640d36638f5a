"""Whose fault it is that tests gave no verdict: a second try, then a control without the agent's files."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tools.errors import AgentCausedError, SandboxError

T = TypeVar("T")

_TRIES = 2


class Control:
    """Whether the tests of one task give a verdict over the clean image; kept once they did."""

    def __init__(self) -> None:
        self._running = asyncio.Lock()
        self._has_verdict = False
        self._ended = 0

    async def has_verdict(self, run: Callable[[], Awaitable[object | None]]) -> bool:
        """Run the tests, unless they gave a verdict before; callers that wait meanwhile share the answer."""
        ended = self._ended
        async with self._running:
            if not self._has_verdict and self._ended == ended:
                self._has_verdict = await run() is not None
                self._ended += 1
            return self._has_verdict


async def decide(
    run: Callable[[], Awaitable[T | None]], clean: Callable[[], Awaitable[T | None]], control: Control
) -> T:
    """Return the verdict of `run`, tried once more where it gives none or its sandbox breaks.

    Args:
        run: the tests over the agent's files in a fresh machine; `None`: they gave no verdict.
        clean: the same tests with the same limit over the clean image.
        control: of these tests, shared by all verdicts of a run.

    Raises:
        AgentCausedError: no verdict with the agent's files, and one without them.
        SandboxError: no verdict without them either, or two tries met a broken sandbox.
    """
    missing = broken = 0
    while missing < _TRIES:
        try:
            verdict = await run()
        except SandboxError:
            broken += 1
            if broken == _TRIES:
                raise
            continue
        if verdict is not None:
            return verdict
        missing += 1
    if await control.has_verdict(clean):
        raise AgentCausedError(
            "the tests give no verdict with the agent's files, and one over the clean image",
            cause="no_verdict",
        )
    raise SandboxError("the tests give no verdict with the agent's files, nor over the clean image")
