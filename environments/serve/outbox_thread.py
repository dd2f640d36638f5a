"""The outbox in a thread of its own: neither the file nor packing stops the event loop."""

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from environments.serve.outbox import Outbox
from tools.errors import RecordError

Result = TypeVar("Result")


class OutboxThread:
    """Calls work with the outbox, one after the other: SQLite has one user."""

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        """For whoever runs before the thread does."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="outbox")

    async def __call__(self, work: Callable[[Outbox], Result]) -> Result:
        """The result of `work`.

        Raises:
            RecordError: the file cannot be read or written.
        """
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work, self.outbox)
        except (sqlite3.Error, OSError) as error:
            raise RecordError(
                f"cannot write the outbox {self.outbox.path} or its file of rejected posts: {error}"
            ) from error

    def close(self) -> None:
        """End the thread when its work is done."""
        self._thread.shutdown()
