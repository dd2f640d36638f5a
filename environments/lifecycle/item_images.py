"""The images that items ask for: each made ready once, and the next ones before a rollout needs them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextvars import Context
from functools import partial

from tools.errors import ConfigError, ImageUnavailable
from tools.waiting import to_the_end

_AHEAD = 2
"""Images made ready before they are needed: all those of a dataset may be more than a disk holds."""
_AT_ONCE = 4
"""Images made ready side by side."""

Image = str | None
"""A name; `None`: the backend's own."""


class ItemImages:
    """Rollouts that need one image wait for one preparation; after it failed, the next one tries again."""

    def __init__(self, prepare: Callable[[Image], Awaitable[None]], order: Iterable[Image] = ()) -> None:
        """Begin nothing.

        Args:
            prepare: makes an image ready.
            order: the images of the items, in the order in which they will be needed.
        """
        self._prepare = prepare
        self.distinct = tuple(dict.fromkeys(order))
        self._index = {image: index for index, image in enumerate(self.distinct)}
        self._preparations: dict[Image, asyncio.Task[str | None]] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def ready(self, image: Image) -> None:
        """Wait until an image is there; the ones after it are begun.

        Raises:
            ImageUnavailable: it cannot be had.
            IsolationError: the backend answers nobody.
        """
        preparation = self._begun(image)
        after = self._index.get(image, len(self.distinct)) + 1
        for later in self.distinct[after : after + _AHEAD]:
            self._begun(later)
        reason = await asyncio.shield(preparation)
        if reason is not None:
            raise ImageUnavailable(f"the image of this item cannot be had: {reason}")

    async def aclose(self) -> None:
        """End what nobody waits for any more."""
        left = [task for task in self._preparations.values() if not task.done()]
        for task in left:
            task.cancel()
        if left:
            await to_the_end(asyncio.wait(left))

    def _begun(self, image: Image) -> "asyncio.Task[str | None]":
        if image not in self._preparations:
            # In no rollout's context: it may outlive the one that asked first.
            task = asyncio.get_running_loop().create_task(self._reason(image), context=Context())
            self._preparations[image] = task
            task.add_done_callback(partial(self._forget_failed, image))
        return self._preparations[image]

    async def _reason(self, image: Image) -> str | None:
        """Why it cannot be had; `None`: it is there."""
        async with self._slots:
            try:
                await self._prepare(image)
            except ConfigError as error:
                return str(error)
        return None

    def _forget_failed(self, image: Image, task: "asyncio.Task[str | None]") -> None:
        if task.cancelled() or task.exception() is not None or task.result() is not None:
            self._preparations.pop(image, None)
