"""Whose fault it is that tests gave no verdict: a second try, then a control without the agent's files."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tools.errors import AgentCausedError, SandboxError

T = TypeVar("T")


class Control:
    """Whether the tests of one task give a verdict over the clean image. A positive answer is kept."""

    def __init__(self) -> None:
        self._running, self._has_verdict, self._ended = asyncio.Lock(), False, 0

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
    """Return the verdict of `run` in a fresh machine, tried once more where it gives none or breaks.

    `clean` is the same without the agent's files, and `control` is shared by all verdicts of these tests.

    Raises:
        AgentCausedError: no verdict with the agent's files, and one without them.
        SandboxError: no verdict without them either, or two tries met a broken sandbox.
    """
    missing = broken = 0
    while missing < 2:
        try:
            if (verdict := await run()) is not None:
                return verdict
            missing += 1
        except SandboxError:
            broken += 1
            if broken == 2:
                raise
    reason = "the tests give no verdict with the agent's files"
    try:
        has_verdict = await control.has_verdict(clean)
    except AgentCausedError as error:  # in a machine without an agent
        raise SandboxError(f"{reason}, and the control broke: {error}") from error
    if not has_verdict:
        raise SandboxError(f"{reason}, nor over the clean image")
    raise AgentCausedError(f"{reason}, and one over the clean image", cause="no_verdict")
