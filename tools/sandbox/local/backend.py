"""Sandboxes on this machine: namespaces or Landlock around one supervisor; listing them, removing orphans."""

import asyncio
import os
import tempfile
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from tools.errors import ConfigError, IsolationError, SandboxCreateError
from tools.sandbox.base import SandboxEntry, SandboxLimits, SandboxRecord, Snapshot, check_lent
from tools.sandbox.host.channel import Channel, RecoveringChannel
from tools.sandbox.host.layout import check_files_fit
from tools.sandbox.host.ownership import has_ended, owner_pid, remove_folder
from tools.sandbox.host.supervised import SupervisedSandbox
from tools.sandbox.local import cgroup, launch, probe, tiers
from tools.sandbox.local.packages import folder_of
from tools.sandbox.local.rootfs import Tree
from tools.sandbox.local.session import Session, stop
from tools.sandbox.local.tiers import Tier
from tools.waiting import or_undo, to_the_end


@asynccontextmanager
async def open_local(
    limits: SandboxLimits,
    *,
    allow_unsafe: bool = False,
    image: str | None = None,
    verifier_files: Mapping[str, bytes] | None = None,
    tier: Tier | None = None,
    tree: Tree | None = None,
) -> AsyncGenerator[SupervisedSandbox]:
    """Open a sandbox in the strongest tier that works here, or in the given one; see `open_sandbox`."""
    if image is not None:
        raise ConfigError(f"the local sandbox shows this machine's programs, not image {image!r}; use docker")
    check_files_fit(limits)
    chosen = await _choose(limits, tier, allow_unsafe)
    lent = limits.read_only
    if limits.packages:
        if chosen == "D" and os.geteuid() != 0:
            raise IsolationError(
                "in tier D the agent is your own user and could change `packages` for others"
            )
        lent = (*lent, await asyncio.to_thread(folder_of, limits.packages))
    for folder in lent:
        check_lent(folder, with_parents=chosen != "B")
    limits_shown = replace(limits, read_only=lent)
    starting = asyncio.to_thread(launch.start, chosen, limits_shown, verifier_files, tree)
    held = _Held(await or_undo(starting, partial(asyncio.to_thread, stop)))
    session = held.session
    channel: Channel | RecoveringChannel | None = None
    try:
        if not allow_unsafe:
            _check_enforced(limits, session.enforced)
        channel = own = await held.channel()
        if session.again is not None:
            channel = RecoveringChannel(channel, held.resume_channel)
        record = SandboxRecord(
            backend="local",
            tier=chosen,
            limits=limits,
            enforced=tuple(sorted(session.enforced)),
            lacks=tuple(sorted(session.lacks)),
        )
        # In other tiers the loopback is the host's.
        listen = own.listen if chosen == "B" and limits.network == "none" else None
        copies = chosen == "B" and os.geteuid() == 0
        yield SupervisedSandbox(channel, session.workdir, record, listen, _snapshot if copies else None)
    finally:
        if channel is not None:
            channel.close("the sandbox is closed")
        await to_the_end(asyncio.to_thread(stop, held.session))


async def _snapshot(sandbox: SupervisedSandbox) -> Snapshot | None:
    """Copy the workspace to a folder that others mount, if that works."""
    limits, archive = sandbox.record.limits, await sandbox.pack_tree()
    tree = await or_undo(asyncio.to_thread(Tree.create), partial(asyncio.to_thread, Tree.remove))
    discard = partial(asyncio.to_thread, tree.remove)
    try:
        async with open_local(limits, allow_unsafe=True, tier="B", tree=tree) as filled:
            await filled.unpack_tree(archive)
        snapshot = Snapshot(options={"tree": replace(tree, writable=False)}, discard=discard)
        async with open_local(limits, allow_unsafe=True, tier="B", **snapshot.options):
            return snapshot
    except BaseException as error:
        await to_the_end(discard())
        if isinstance(error, SandboxCreateError):  # this kernel or file system has no overlays
            return None
        raise


class _Held:
    """A session that continues after the agent killed its supervisor."""

    def __init__(self, session: Session) -> None:
        self.session = session

    async def resume_channel(self) -> Channel:
        """Start the next supervisor."""

        async def resume() -> None:
            before = self.session
            self.session = await asyncio.to_thread(launch.resume, before)
            before.process.close()

        # A time budget must not interrupt this: the sandbox is still to be judged.
        await to_the_end(resume())
        return await self.channel()

    async def channel(self) -> Channel:
        return await Channel.over(self.session.channel, counters=partial(cgroup.counters, self.session.group))


async def _choose(limits: SandboxLimits, tier: Tier | None, allow_unsafe: bool) -> Tier:
    try:
        return await asyncio.to_thread(probe.choose_tier, limits, tier=tier, allow_unsafe=allow_unsafe)
    except RuntimeError as error:
        # This process lacks memory or processes.
        reasons = "; ".join([str(error), *tiers.narrow_limits()])
        raise IsolationError(f"this machine cannot start a sandbox now: {reasons}") from error


def _check_enforced(limits: SandboxLimits, enforced: frozenset[str]) -> None:
    wanted = {"pids", "file_mb", "output_mb", "disk_mb"}
    if "disk_mb_watched" in enforced:
        wanted.remove("disk_mb")
    if limits.network == "none":
        wanted.add("network")
    if limits.cpus is not None:
        wanted.add("cpus")
    missing = sorted(wanted - enforced)
    if missing:
        raise IsolationError(
            f"this machine cannot enforce the sandbox limits {missing}; run as root or in a delegated "
            "control group (`systemd-run --user --scope -p Delegate=yes`), or accept it with "
            "`--env.allow_unsafe_sandbox`"
        )


# Processes of a sandbox end with their owner, so only control groups and folders, named after it, can remain.


async def entries() -> Sequence[SandboxEntry]:
    return await asyncio.to_thread(_list)


async def reap() -> Sequence[SandboxEntry]:
    return await asyncio.to_thread(_remove_orphans)


def _list() -> list[SandboxEntry]:
    found: list[SandboxEntry] = []
    for name in sorted({path.name for path in _paths()}):
        owner = name.removeprefix(f"{cgroup.PREFIX}.").rpartition(".")[0]
        pid = owner_pid(owner)
        state = "unknown" if pid is None else "orphan" if has_ended(owner) else "in use"
        found.append(SandboxEntry(backend="local", name=name, owner=pid, state=state))
    return found


def _remove_orphans() -> list[SandboxEntry]:
    orphans = {entry.name: entry for entry in _list() if entry.state == "orphan"}
    for path in _paths():
        if path.name not in orphans:
            continue
        if path.is_relative_to(tempfile.gettempdir()):
            remove_folder(str(path))
        else:
            with suppress(OSError):
                cgroup.remove_directory(path)
    left = {path.name for path in _paths()}
    return [entry for name, entry in orphans.items() if name not in left]


def _paths() -> Iterator[Path]:
    for parent in {directory for directory, _ in cgroup.controllers().values()}:
        yield from parent.glob(f"{cgroup.PREFIX}.*.*")
    yield from Path(tempfile.gettempdir()).glob(f"{cgroup.PREFIX}.*.*")
