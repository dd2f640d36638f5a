"""Engine, images, warm containers and threads of this process."""

import asyncio
import fcntl
import hashlib
import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from tools.errors import ConfigError, IsolationError, SandboxCreateError
from tools.sandbox.docker import container as containers
from tools.sandbox.docker import orphans
from tools.sandbox.docker.container import Container, Spec
from tools.sandbox.docker.engine import MOST_BUILD_S, THREADS, Engine, EngineError, Image, Ramp, connect
from tools.sandbox.docker.orphans import labels
from tools.waiting import to_the_end

DEFAULT_IMAGE = "python:3.11-slim-bookworm"
MOST_CREATES = max(4, 2 * (os.cpu_count() or 1))
"""Concurrent creates over all pools; more slow each other down."""
_MOST_WARM = 8
_SLOW_CREATE_S = 15.0

T = TypeVar("T")
Progress = Callable[[str], None]


class Pool(Generic[T]):
    """A pool of warm containers, used from threads.

    It keeps one ready for every two open ones and is emptied when the last one closes.
    """

    def __init__(
        self,
        make: Callable[[], T],
        *,
        drop: Callable[[T], None],
        alive: Callable[[T], bool],
        creators: ThreadPoolExecutor,
        most: int = _MOST_WARM,
    ) -> None:
        self._make = make
        self._drop = drop
        self._alive = alive
        self._creators = creators
        self._most = most
        self._open = 0
        self._ready: deque[T] = deque()
        self._coming: set[Future[None]] = set()
        self._changed = threading.Condition()

    def enter(self) -> None:
        with self._changed:
            self._open += 1

    def pop(self) -> T | None:
        while True:
            with self._changed:
                found = self._ready.popleft() if self._ready else None
            if found is None or self._alive(found):
                self._stock()
                return found
            self._drop(found)

    def leave(self) -> None:
        with self._changed:
            self._open -= 1
            if self._open:
                return
            for future in list(self._coming):
                future.cancel()
            # Another caller may open meanwhile.
            self._changed.wait_for(lambda: not self._coming or self._open > 0)
            unused = [] if self._open else list(self._ready)
            if unused:
                self._ready.clear()
        for one in unused:
            self._drop(one)

    def _stock(self) -> None:
        with self._changed:
            for _ in range(self._target() - len(self._ready) - len(self._coming)):
                future = self._creators.submit(self._add)
                self._coming.add(future)
                future.add_done_callback(self._on_made)

    def _target(self) -> int:
        return min(self._open // 2, self._most)

    def _add(self) -> None:
        with self._changed:
            if not self._open:
                return
        made = self._make()
        with self._changed:
            if self._open:
                self._ready.append(made)
                return
        self._drop(made)

    def _on_made(self, future: "Future[None]") -> None:
        if not future.cancelled() and (error := future.exception()) is not None:
            _LOG.info("no container could be made ahead: %s", error)
        with self._changed:
            self._coming.discard(future)
            self._changed.notify_all()


_LOG = logging.getLogger(__name__)
_THREADS = THREADS - MOST_CREATES if THREADS > 2 * MOST_CREATES else MOST_CREATES


class ContainerManager:
    """The containers of this process, independent of event loops."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._labels = labels()
        self.creators = _start_threads(MOST_CREATES, "turnwise-docker-create")
        self._ramp = Ramp(MOST_CREATES, _SLOW_CREATE_S)
        self._fails = False
        self._lock = threading.Lock()
        self._images: dict[str, Image] = {}
        self._image_locks: dict[str, threading.Lock] = {}
        self._unremoved: deque[str] = deque()
        self._pools: dict[Spec, Pool[Container]] = {}

    def image(self, name: str, progress: Progress) -> Image:
        """Return an image, resolved once per process."""
        with self._lock:
            lock = self._image_locks.setdefault(name, threading.Lock())
        with lock:
            if name not in self._images:
                try:
                    self._images[name] = prepare_image(self.engine, name, progress)
                except EngineError as error:
                    raise IsolationError(f"the Docker engine gives no answer on {name!r}: {error}") from error
            return self._images[name]

    def pool(self, spec: Spec) -> Pool[Container]:
        with self._lock:
            if spec not in self._pools:
                self._pools[spec] = Pool(
                    partial(self.make, spec), drop=self.drop, alive=containers.answers,
                    creators=self.creators,
                )  # fmt: skip
            return self._pools[spec]

    def make(self, spec: Spec) -> Container:
        with self._ramp.slot():
            try:
                return containers.start(self.engine, spec, self._labels, self.discard)
            except (SandboxCreateError, ConfigError):
                # A container that ended with its engine looks like a bad image.
                return containers.start(self.engine, spec, self._labels, self.discard)

    def drop(self, container: Container | None) -> None:
        if container is not None:
            container.connection.close()
            self.discard(container.id)

    def discard(self, container: str) -> None:
        """Remove a container, and those that could not be removed earlier; never raises."""
        self._unremoved.append(container)
        for _ in range(len(self._unremoved)):
            try:
                one = self._unremoved.popleft()
            except IndexError:
                break
            try:
                containers.remove(self.engine, one)
            except EngineError as error:
                self._unremoved.append(one)
                with self._lock:
                    is_first, self._fails = not self._fails, True
                if is_first:
                    _LOG.warning(
                        "the Docker engine removes no containers, which end by themselves: %s", error
                    )
                if error.status is None:
                    return
        self._fails = self._fails and bool(self._unremoved)


def manager() -> ContainerManager:
    """Return this process's manager; the first call removes orphans."""
    with _opening:
        return _manager(os.getpid())


async def in_thread(call: Callable[[], T]) -> T:
    return await asyncio.wrap_future(threads().submit(call))


async def make_in_thread(threads: ThreadPoolExecutor, make: Callable[[], T], undo: Callable[[T], None]) -> T:
    """Return a thread's result; on cancellation it is skipped or undone."""
    future = threads.submit(make)
    try:
        return await asyncio.shield(asyncio.wrap_future(future))
    except asyncio.CancelledError:
        if not future.cancel():
            await to_the_end(_undone(asyncio.wrap_future(future), undo))
        raise


def threads() -> ThreadPoolExecutor:
    return _threads(os.getpid())


async def _undone(making: Awaitable[T], undo: Callable[[T], None]) -> None:
    task = asyncio.ensure_future(making)
    await asyncio.wait({task})
    if task.exception() is None:
        await in_thread(partial(undo, task.result()))


_opening = threading.Lock()


def _start_threads(count: int, name: str) -> ThreadPoolExecutor:
    """Start all threads now: lazy starts would block the event loop."""
    executor = ThreadPoolExecutor(count, name)
    everyone = threading.Barrier(count)
    for _ in range(count):
        executor.submit(everyone.wait)
    return executor


# Keyed by process, because a forked child lacks its parent's threads and connections.
@cache
def _threads(_process: int) -> ThreadPoolExecutor:
    return _start_threads(_THREADS, "turnwise-docker")


@cache
def _manager(_process: int) -> ContainerManager:
    engine = connect()
    try:
        for orphan in orphans.remove_orphans(engine):
            _LOG.info("removed container %s, which a dead process left", orphan.name)
    except EngineError as error:
        _LOG.warning("leftover containers are not removed: %s", error)
    return ContainerManager(engine)


_EVERY_S = 2.0
_DOCKERFILE = "Dockerfile"


def prepare_image(engine: Engine, name: str, progress: Progress) -> Image:
    """Return an image by name or id, or built from a folder.

    Raises:
        ConfigError: if it cannot be pulled or built.
        EngineError: if the engine does not answer.
    """
    with _one_at_a_time():
        return _find_or_pull(engine, name, progress)


@contextmanager
def _one_at_a_time() -> Generator[None]:
    """Lock among processes, so that later ones find the image."""
    with open(__file__, "rb") as file:  # noqa: PTH123
        with suppress(OSError):  # without locks an image may be pulled twice
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _find_or_pull(engine: Engine, name: str, progress: Progress) -> Image:
    if name.startswith(("./", "../", "/", "~")):
        return _build(engine, Path(name).expanduser(), progress)
    if (found := engine.image(name)) is not None:
        return found
    try:
        _follow(f"pulling {name}", engine.pull(name), progress)
    except EngineError as error:
        raise ConfigError(
            f"image {name!r} is not on the Docker engine and cannot be pulled: {error}; pull it by hand "
            "(`docker pull`), or name another one or a folder with a Dockerfile"
        ) from error
    if (found := engine.image(name)) is None:
        raise ConfigError(f"image {name!r} was pulled, but the Docker engine does not know it by that name")
    return found


def _build(engine: Engine, folder: Path, progress: Progress) -> Image:
    if not (folder / _DOCKERFILE).is_file():
        raise ConfigError(f"no image can be built from {str(folder)!r}: it has no {_DOCKERFILE}")
    tag = f"turnwise-built:{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]}"
    try:
        _follow(f"building {folder}", engine.build(str(folder), tag), progress, MOST_BUILD_S)
        found = engine.image(tag)
    except EngineError as error:
        raise ConfigError(f"no image can be built from {str(folder)!r}: {error}") from error
    if found is None:
        raise ConfigError(f"no image can be built from {str(folder)!r}: the engine made none")
    return found


def _follow(
    what: str, events: Iterator[dict[str, Any]], progress: Progress, most_s: float = math.inf
) -> None:
    progress(what)
    told = began = time.monotonic()
    layers: dict[str, tuple[int, int]] = {}
    for event in events:
        if "error" in event:
            raise EngineError(str(event["error"]).strip(), None)
        if time.monotonic() - began > most_s:
            raise EngineError(f"it took longer than {most_s:g} s", None)
        detail: dict[str, int] = event.get("progressDetail") or {}
        if event.get("status") == "Downloading" and detail.get("total"):
            layers[event["id"]] = (detail.get("current", 0), detail["total"])
        if time.monotonic() - told > _EVERY_S:
            told = time.monotonic()
            progress(f"{what}: {_progress(layers, event)}")
    progress(f"{what}: done")


def _progress(layers: dict[str, tuple[int, int]], event: dict[str, Any]) -> str:
    if not layers:
        return str(event.get("stream") or event.get("status") or "").strip()
    done, total = (sum(column) >> 20 for column in zip(*layers.values(), strict=True))
    return f"{done} of {total} MB"
