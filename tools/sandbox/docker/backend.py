"""Sandboxes in containers of a Docker engine: one container per rollout."""

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial

from tools.errors import AgentCausedError, IsolationError, SandboxCreateError, SandboxUnavailable, UsageError
from tools.sandbox.base import SandboxLimits, SandboxRecord
from tools.sandbox.docker import container as containers
from tools.sandbox.docker.container import Container, Spec
from tools.sandbox.docker.engine import Connection, EngineError
from tools.sandbox.docker.manager import (
    DEFAULT_IMAGE,
    ContainerManager,
    Progress,
    in_thread,
    make_in_thread,
    manager,
    threads,
)
from tools.sandbox.docker.whole import DiskWatch, WholeSandbox, hold_on_host
from tools.sandbox.host.channel import Channel, RecoveringChannel
from tools.sandbox.host.layout import WORKDIR, check_files_fit
from tools.sandbox.host.silence import SilentStartError
from tools.sandbox.host.supervised import SupervisedSandbox
from tools.waiting import to_the_end

_LOG = logging.getLogger(__name__)
_ATTEMPTS = 3


@asynccontextmanager
async def open_docker(
    limits: SandboxLimits,
    *,
    allow_unsafe: bool = False,
    image: str | None = None,
    verifier_files: Mapping[str, bytes] | None = None,
    whole: bool = False,
) -> AsyncGenerator[SupervisedSandbox]:
    """Open a sandbox in a new or pooled container, see `open_sandbox`; images need python3, sh and bash."""
    if not whole:
        check_files_fit(limits)
    managed = await in_thread(manager)
    found = await in_thread(partial(managed.image, image or DEFAULT_IMAGE, _LOG.info))
    async with AsyncExitStack() as closing:
        spec = Spec(image=found, limits=limits, holds=verifier_files is not None and not whole, whole=whole)
        container: Container | None = None
        if whole and verifier_files is not None:
            spec = replace(spec, held=closing.enter_context(hold_on_host(verifier_files, spec.workdir)))
        else:
            pool = managed.pool(spec)
            pool.enter()
            closing.push_async_callback(lambda: to_the_end(in_thread(pool.leave)))
            container = await make_in_thread(threads(), pool.pop, managed.drop)
        if container is None:
            container = await make_in_thread(managed.creators, partial(managed.make, spec), managed.drop)
        closing.push_async_callback(lambda: to_the_end(in_thread(partial(managed.drop, container))))
        if verifier_files is not None and not whole:
            await in_thread(partial(containers.hold, managed.engine, container, verifier_files))
        enforced = container.facts.list_enforced(limits, whole=whole)
        if not allow_unsafe:
            _check_enforced(limits, enforced)
        watch = DiskWatch(managed, container)
        if whole:
            closing.callback(asyncio.create_task(watch.run()).cancel)
        channel = RecoveringChannel(
            await container.connection.attach(**containers.judging(managed.engine, container)),
            partial(_supervise, managed, container, watch, [container.connection]),
        )
        closing.callback(channel.close, "the sandbox is closed")
        record = SandboxRecord(
            backend="docker", tier=managed.engine.runtime, limits=limits, enforced=enforced,
            image=spec.image.digest, lacks=containers.lacks(managed.engine, limits, whole=whole),
        )  # fmt: skip
        open_listener = partial(containers.listener, managed.engine, container)
        listen = partial(make_in_thread, threads(), open_listener, socket.socket.close)
        if whole:
            sandbox = WholeSandbox(watch, channel, record, listen)
            await sandbox.note_volumes()
            yield sandbox
        else:
            yield SupervisedSandbox(channel, WORKDIR, record, listen)


async def prepare_image(name: str | None = None, *, progress: Progress | None = None) -> str:
    """Pull or build an image (None: the default) and return its digest."""
    managed = await in_thread(manager)
    return (await in_thread(partial(managed.image, name or DEFAULT_IMAGE, progress or _LOG.info))).digest


async def missing_images(names: Sequence[str]) -> list[str]:
    engine = (await in_thread(manager)).engine
    try:
        found = [await in_thread(partial(engine.image, name)) for name in names]
    except EngineError as error:
        raise IsolationError(f"the Docker engine does not say which images it has: {error}") from error
    return [name for name, image in zip(names, found, strict=True) if image is None]


async def _supervise(
    managed: ContainerManager, container: Container, watch: DiskWatch, connections: list[Connection]
) -> Channel:
    """Start another supervisor after killing everything in the container."""
    watch.refuse_over()
    start = partial(_restart, managed, container, connections[-1])
    connections.append(await make_in_thread(threads(), start, Connection.close))
    return await connections[-1].attach(**containers.judging(managed.engine, container))


def _restart(managed: ContainerManager, container: Container, last: Connection) -> Connection:
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            containers.refuse_cut(managed.engine, last)
            containers.clear(managed.engine, container)
            return containers.supervise(
                managed.engine, container.id, container.spec, container.uid, replaces=True
            )[0]
        except (EngineError, SilentStartError) as error:
            raise SandboxUnavailable(f"the container is gone: {error}") from error
        except (SandboxCreateError, UsageError) as error:
            # The agent's processes may have killed it before they died.
            if attempt == _ATTEMPTS:
                managed.drop(managed.make(container.spec))  # this raises if no fresh container starts
                reason = "no supervisor starts any more over what the agent left in the container"
                raise AgentCausedError(reason, cause="sandbox_lost") from error
    raise AssertionError


def _check_enforced(limits: SandboxLimits, enforced: tuple[str, ...]) -> None:
    wanted = ["memory_mb", "pids"] if limits.cpus is None else ["cpus", "memory_mb", "pids"]
    if missing := [name for name in wanted if name not in enforced]:
        raise IsolationError(
            f"this Docker engine cannot enforce the sandbox limits {missing}; give it the control groups "
            "(`docker info` warns about what is missing), or accept it with `--env.allow_unsafe_sandbox`"
        )
