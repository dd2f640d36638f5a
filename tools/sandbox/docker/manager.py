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
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from tools.errors import ConfigError, IsolationError, SandboxCreateError
from tools.sandbox.docker import container as containers
from tools.sandbox.docker import orphans
from tools.sandbox.docker.container import Container, Spec
from tools.sandbox.docker.engine import MOST_BUILD_S, THREADS, Engine, EngineError, Image, Ramp, connect
from tools.sandbox.docker.orphans import labels
from tools.waiting import to_the_end, undo_result

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
    ) -> None:
        self._make, self._drop, self._alive, self._creators = make, drop, alive, creators
        self._open = 0
        self._ahead: list[Future[T]] = []
        """Containers that no sandbox has yet, ready or still being made."""
        self._lock = threading.Lock()

    def enter(self) -> None:
        with self._lock:
            self._open += 1

    def pop(self) -> T | None:
        found = None
        while found is None and (made := self._take()) is not None:
            if (error := made.exception()) is not None:
                _LOG.info("no container could be made ahead: %s", error)
            elif self._alive(made.result()):
                found = made.result()
            else:
                self._drop(made.result())
        with self._lock:
            missing = min(self._open // 2, _MOST_WARM) - len(self._ahead)
            self._ahead += [self._creators.submit(self._make) for _ in range(missing)]
        return found

    def leave(self) -> None:
        with self._lock:
            self._open -= 1
            unused = [] if self._open else self._ahead
            self._ahead = self._ahead if self._open else []
        for made in unused:
            if not made.cancel() and made.exception() is None:
                self._drop(made.result())

    def _take(self) -> "Future[T] | None":
        with self._lock:
            made = next((each for each in self._ahead if each.done()), None)
            if made is not None:
                self._ahead.remove(made)
            return made


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
            made = asyncio.wrap_future(future)
            await to_the_end(undo_result(made, lambda result: in_thread(partial(undo, result))))
        raise


def threads() -> ThreadPoolExecutor:
    return _threads(os.getpid())


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
_PRUNED = "unknown parent image"
"""Part of the engine's error if another client removed a cached step's image during the build."""


def prepare_image(engine: Engine, name: str, progress: Progress) -> Image:
    """Return an image by name or id, or built from a folder.

    Raises:
        ConfigError: if it cannot be pulled or built.
        EngineError: if the engine does not answer.
    """
    with Path(__file__).open("rb") as file:
        # A lock among processes, so that later ones find the image; without locks it may be pulled twice.
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        if name.startswith(("./", "../", "/", "~")):
            return _build(engine, Path(name).expanduser(), progress)
        if (found := engine.image(name)) is not None:
            return found
        try:
            _follow(f"pulling {name}", engine.pull(name), progress)
        except EngineError as error:
            if error.is_silence:
                raise
            raise ConfigError(
                f"image {name!r} is not on the Docker engine and cannot be pulled: {error}; pull it by hand "
                "(`docker pull`), or name another one or a folder with a Dockerfile"
            ) from error
        if (found := engine.image(name)) is None:
            raise ConfigError(
                f"image {name!r} was pulled, but the Docker engine does not know it by that name"
            )
        return found


def _build(engine: Engine, folder: Path, progress: Progress) -> Image:
    if not (folder / _DOCKERFILE).is_file():
        raise ConfigError(f"no image can be built from {str(folder)!r}: it has no {_DOCKERFILE}")
    tag = f"turnwise-built:{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]}"
    for is_last in (False, True):
        try:
            _follow(f"building {folder}", engine.build(str(folder), tag), progress, MOST_BUILD_S)
            break
        except EngineError as error:
            if error.is_silence:
                raise
            if is_last or _PRUNED not in str(error):
                raise ConfigError(f"no image can be built from {str(folder)!r}: {error}") from error
    found = engine.image(tag)
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
            state = str(event.get("stream") or event.get("status") or "").strip()
            if layers:
                done, total = (sum(column) >> 20 for column in zip(*layers.values(), strict=True))
                state = f"{done} of {total} MB"
            progress(f"{what}: {state}")
    progress(f"{what}: done")
