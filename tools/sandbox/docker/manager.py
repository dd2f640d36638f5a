"""What this process keeps for its containers: the engine, images that were prepared, pools and threads."""

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import TypeVar

from tools.sandbox.docker import container as containers
from tools.sandbox.docker import image as images
from tools.sandbox.docker import orphans
from tools.sandbox.docker.container import Container, Spec
from tools.sandbox.docker.engine import THREADS, Engine, EngineError, Image, connect
from tools.sandbox.docker.image import Progress
from tools.sandbox.docker.labels import labels
from tools.sandbox.docker.pool import MOST_CREATES, Pool, Ramp
from tools.waiting import to_the_end

_LOG = logging.getLogger(__name__)
_THREADS = THREADS - MOST_CREATES if THREADS > 2 * MOST_CREATES else MOST_CREATES

T = TypeVar("T")


class ContainerManager:
    """One per process: containers belong to it, not to an event loop. Its threads make every engine call."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._labels = labels()
        self.creators = _started(MOST_CREATES, "turnwise-docker-create")
        self._ramp = Ramp()
        self._lock = threading.Lock()
        self._images: dict[str, Image] = {}
        self._image_locks: dict[str, threading.Lock] = {}
        self._unremoved: deque[str] = deque()
        self._pools: dict[Spec, Pool[Container]] = {}

    def image(self, name: str, progress: Progress) -> Image:
        """The image of a name, the same for the whole life of this process; blocks, once per image.

        Raises:
            ConfigError: it cannot be had.
        """
        with self._lock:
            lock = self._image_locks.setdefault(name, threading.Lock())
        with lock:
            if name not in self._images:
                self._images[name] = images.prepare(self.engine, name, progress)
            return self._images[name]

    def pool(self, spec: Spec) -> Pool[Container]:
        """The pool of containers of this kind."""
        with self._lock:
            if spec not in self._pools:
                self._pools[spec] = Pool(
                    partial(self.make, spec), drop=self.drop, alive=containers.answers,
                    creators=self.creators,
                )  # fmt: skip
            return self._pools[spec]

    def make(self, spec: Spec) -> Container:
        """A new container; blocks."""
        with self._ramp.slot():
            return containers.start(self.engine, spec, self._labels, self.discard)

    def drop(self, container: Container | None) -> None:
        """End a container; blocks."""
        if container is not None:
            container.connection.close()
            self.discard(container.id)

    def discard(self, container: str) -> None:
        """Remove a container, and those that could not be removed before; blocks and never fails."""
        self._unremoved.append(container)
        for _ in range(len(self._unremoved)):
            try:
                one = self._unremoved.popleft()
            except IndexError:
                return
            try:
                containers.remove(self.engine, one)
            except EngineError as error:
                self._unremoved.append(one)
                if one == container:  # told once, however often it is tried
                    _LOG.warning("container %s is not removed yet: %s", one[:12], error)


def manager() -> ContainerManager:
    """This process's manager; the first time it connects and removes what dead processes left. Blocks.

    Raises:
        IsolationError: no engine answers.
    """
    with _opening:
        return _manager(os.getpid())


async def in_thread(call: Callable[[], T]) -> T:
    """The result of a blocking call in a thread of ours."""
    return await asyncio.wrap_future(threads().submit(call))


async def made_in(threads: ThreadPoolExecutor, make: Callable[[], T], undo: Callable[[T], None]) -> T:
    """What a thread makes; when the caller is cancelled it is not begun, or else undone."""
    future = threads.submit(make)
    try:
        return await asyncio.shield(asyncio.wrap_future(future))
    except asyncio.CancelledError:
        if not future.cancel():
            await to_the_end(_undone(asyncio.wrap_future(future), undo))
        raise


def threads() -> ThreadPoolExecutor:
    """The threads for calls that do not create."""
    return _threads(os.getpid())


async def _undone(making: Awaitable[T], undo: Callable[[T], None]) -> None:
    task = asyncio.ensure_future(making)
    await asyncio.wait({task})
    if task.exception() is None:
        await in_thread(partial(undo, task.result()))


_opening = threading.Lock()


def _started(count: int, name: str) -> ThreadPoolExecutor:
    """All threads at once: started one by one on first use, they would hold up an event loop each time."""
    executor = ThreadPoolExecutor(count, name)
    everyone = threading.Barrier(count)
    for _ in range(count):
        executor.submit(everyone.wait)
    return executor


# A forked child has neither the threads nor the connections of its parent.
@cache
def _threads(_process: int) -> ThreadPoolExecutor:
    return _started(_THREADS, "turnwise-docker")


@cache
def _manager(_process: int) -> ContainerManager:
    engine = connect()
    try:
        for orphan in orphans.reaped(engine):
            _LOG.info("removed container %s, which a dead process left", orphan.name)
    except EngineError as error:
        _LOG.warning("leftover containers are not removed: %s", error)
    return ContainerManager(engine)
