"""What an environment's code left running beyond its limit: counted, and waited for by nobody."""

import asyncio
from collections.abc import Callable
from typing import Any

from tools.errors import RunError

MOST = 32
"""Abandoned calls that may still run; each one keeps a thread or a connection."""


class Abandoned:
    """The calls of one environment that did not end when they were told to."""

    def __init__(self) -> None:
        self._still_running: list[Callable[[], bool]] = []
        self._last = ""

    def add(self, what: str, still_running: Callable[[], bool]) -> None:
        """Note a call that goes on."""
        self._still_running.append(still_running)
        self._last = what

    def add_task(self, what: str, task: "asyncio.Task[object]") -> None:
        """Note a task that goes on when it is cancelled; the end of the loop will not wait for it either."""
        self.add(what, lambda: not task.done())
        leave_behind(task)

    @property
    def count(self) -> int:
        """How many still run."""
        self._still_running = [still_running for still_running in self._still_running if still_running()]
        return len(self._still_running)

    def refuse_more(self, env: str) -> None:
        """Raise RunError when more than `MOST` still run."""
        if (count := self.count) > MOST:
            raise RunError(
                f"environment {env!r}: {count} calls of its code still run beyond their limit, the last one "
                f"{self._last}; give what they wait for a timeout of its own"
            )


def leave_behind(task: "asyncio.Task[Any]") -> None:
    """Let the loop end without a task that may go on although it was cancelled."""
    # `asyncio.run` cancels and awaits every task that asyncio knows of: this one would keep it for ever.
    asyncio._unregister_task(task)  # pyright: ignore[reportPrivateUsage]  # documented for who extends asyncio
    task._log_destroy_pending = False  # pyright: ignore[reportAttributeAccessIssue]  # who left it tells
