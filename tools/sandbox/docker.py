"""Sandboxes in containers of a real Docker engine: one container per rollout, one program as its channel."""

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial

from tools.errors import IsolationError, SandboxCreateError, SandboxUnavailable, UsageError
from tools.sandbox import docker_container, docker_engine, docker_orphans, rootfs
from tools.sandbox.base import SandboxLimits, SandboxRecord
from tools.sandbox.channel import Channel
from tools.sandbox.docker_channel import ContainerChannel
from tools.sandbox.docker_container import Container, Spec
from tools.sandbox.docker_engine import Engine, EngineError
from tools.sandbox.docker_image import DEFAULT_IMAGE, Progress
from tools.sandbox.docker_orphans import ContainerRecord
from tools.sandbox.docker_stream import Connection
from tools.sandbox.docker_workshop import Workshop, in_thread, made_in, threads, workshop
from tools.sandbox.supervised import SupervisedSandbox
from tools.sandbox.waiting import to_the_end

__all__ = ["DEFAULT_IMAGE", "ContainerRecord", "list_sandboxes", "open_docker", "prepare_image", "reap"]

_LOG = logging.getLogger(__name__)
_ATTEMPTS = 3


@asynccontextmanager
async def open_docker(
    limits: SandboxLimits, *, allow_unsafe: bool = False, image: str | None = None
) -> AsyncGenerator[SupervisedSandbox]:
    """A sandbox in a new container, or in one that was made ahead; it is removed afterwards.

    Args:
        limits: of the container.
        allow_unsafe: accept an engine that cannot enforce all of them.
        image: a name, an id, or a folder with a Dockerfile; it needs python3, /bin/sh and /bin/bash.

    Raises:
        ConfigError: the image cannot be had or lacks something, or the limits contradict each other.
        IsolationError: no engine answers, or it cannot enforce a limit and `allow_unsafe` is not set.
        SandboxCreateError: the container could not be started.
    """
    rootfs.check_files_fit(limits)
    shop = await in_thread(workshop)
    spec = Spec(image=await in_thread(partial(shop.image, image or DEFAULT_IMAGE, _LOG.info)), limits=limits)
    pool = shop.pool(spec)
    pool.enter()
    try:
        container = await made_in(threads(), pool.pop, shop.drop)
        if container is None:
            container = await made_in(shop.creators, partial(shop.make, spec), shop.drop)
        channel: ContainerChannel | None = None
        try:
            enforced = container.facts.enforced(limits)
            if not allow_unsafe:
                _check_enforced(limits, enforced)
            channel = ContainerChannel(
                await container.connection.attach(), partial(_supervise, shop, container)
            )
            record = SandboxRecord(
                backend="docker", tier=shop.engine.runtime, limits=limits, enforced=enforced,
                image=spec.image.digest, lacks=() if limits.network == "none" else ("network",),
            )  # fmt: skip
            yield SupervisedSandbox(channel, rootfs.WORKDIR, record)
        finally:
            if channel is not None:
                channel.close("the sandbox is closed")
            await to_the_end(in_thread(partial(shop.drop, container)))
    finally:
        await to_the_end(in_thread(pool.leave))


async def prepare_image(name: str | None = None, *, progress: Progress | None = None) -> str:
    """Pull or build an image before the first sandbox needs it; its digest.

    Args:
        name: of the image; `None` for the backend's own.
        progress: takes a line for a person now and then; `None` writes them to the log.

    Raises:
        ConfigError: the image cannot be had.
        IsolationError: no engine answers.
    """
    shop = await in_thread(workshop)
    return (await in_thread(partial(shop.image, name or DEFAULT_IMAGE, progress or _LOG.info))).digest


async def list_sandboxes() -> tuple[ContainerRecord, ...]:
    """Every container of ours on the engine, whoever made it, the oldest first.

    Raises:
        IsolationError: no engine answers.
    """
    return await in_thread(lambda: _asked(docker_orphans.listed))


async def reap(*, everything: bool = False) -> tuple[ContainerRecord, ...]:
    """Remove containers whose process is provably gone; those that were removed.

    Args:
        everything: all of ours, also those that somebody uses now.

    Raises:
        IsolationError: no engine answers.
    """
    return await in_thread(lambda: _asked(partial(docker_orphans.reaped, everything=everything)))


async def _supervise(shop: Workshop, container: Container) -> Channel:
    """The channel to a new supervisor in the same container; everything that ran there is dead."""

    def start() -> Connection:
        return _restarted(shop, container)

    connection = await made_in(threads(), start, Connection.close)
    return await connection.attach()


def _restarted(shop: Workshop, container: Container) -> Connection:
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return docker_container.supervise(
                shop.engine, container.id, container.spec, container.uid, replaces=True
            )[0]
        except EngineError as error:
            raise SandboxUnavailable(f"the container is gone: {error}") from error
        except (SandboxCreateError, UsageError) as error:
            # Something of the agent's may have killed this one too, before it died itself.
            if attempt == _ATTEMPTS:
                raise SandboxUnavailable(f"the container has no supervisor any more: {error}") from error
    raise AssertionError


def _asked(call: Callable[[Engine], tuple[ContainerRecord, ...]]) -> tuple[ContainerRecord, ...]:
    try:
        return call(docker_engine.connect())
    except EngineError as error:
        raise IsolationError(f"the Docker engine does not do it: {error}") from error


def _check_enforced(limits: SandboxLimits, enforced: tuple[str, ...]) -> None:
    wanted = ["memory_mb", "pids"] if limits.cpus is None else ["cpus", "memory_mb", "pids"]
    if missing := [name for name in wanted if name not in enforced]:
        raise IsolationError(
            f"this Docker engine cannot enforce the sandbox limits {missing}; give it the control groups "
            "(`docker info` warns about what is missing), or accept it with `--env.allow_unsafe_sandbox`"
        )
