"""Containers of which the agent is root: what it changed, a verifier's files, and a bound on the disk."""

import asyncio
import errno
import io
import itertools
import os
import posixpath
import socket
import tarfile
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from tools.errors import AgentCausedError, SandboxUnavailable
from tools.sandbox.base import SandboxRecord, Snapshot
from tools.sandbox.docker.container import Container
from tools.sandbox.docker.engine import EngineError
from tools.sandbox.docker.manager import ContainerManager, in_thread
from tools.sandbox.docker.orphans import labels
from tools.sandbox.host.layout import RUN_DIR, VERIFIER_DIR, most_files
from tools.sandbox.host.process_ids import identity
from tools.sandbox.host.supervised import Requests, SupervisedSandbox
from tools.sandbox.inside import held_files

_LOOK_S = 2.0
_LOOKS_PER_COUNT = 5
"""The engine lists every file to count them."""
_TESTS = "/tests"
"""A verifier's alone, as in the task folders that people publish."""
_MOST_ARCHIVES = 4000
"""The engine is asked for one per changed file, and one per new folder."""
_CROWDED = 100
"""Changes in a folder for which it is asked for the folder instead."""
_OURS = (
    RUN_DIR, VERIFIER_DIR, "/dev", "/proc", "/sys", "/.dockerenv", "/etc/hosts", "/etc/hostname",
    "/etc/resolv.conf", "/etc/mtab",
)  # fmt: skip
_CHANGED, _NEW, _REMOVED = range(3)
_GONE = "turnwise.gone"
"""A header of a member that stands for a path that was removed."""
_REMOVE = """
import os, shutil, sys
for path in filter(None, sys.stdin.buffer.read().split(b"\\0")):
    if os.path.isdir(path) and not os.path.islink(path): shutil.rmtree(path)
    elif os.path.lexists(path): os.unlink(path)
"""
_REMOVE_S = 120.0


@contextmanager
def held_on_host(files: Mapping[str, bytes], workdir: str) -> Generator[tuple[tuple[str, str], ...]]:
    """A verifier's files in a folder of this machine, for mounts that root in a container cannot change.

    `/tests` is one mount: nothing can be put beside them there. Elsewhere each file is one, which a program
    of root's can move away with the folder around it.
    """
    with tempfile.TemporaryDirectory(prefix=f"turnwise.{identity(os.getpid())}.") as base:
        folder = Path(base) / "held"
        folder.mkdir()
        held_files.keep(list(files.items()), str(folder), workdir, VERIFIER_DIR)
        mounts = {str(folder): VERIFIER_DIR}
        for path in files:
            at = posixpath.join(workdir, path)
            is_test = at.startswith(f"{_TESTS}/") and at == posixpath.join("/", path)
            mounts[held_files.kept_at(_TESTS if is_test else path, str(folder))] = _TESTS if is_test else at
        yield tuple(mounts.items())


class DiskWatch:
    """Ends a container that writes more than it may, before it fills the disk that all share."""

    def __init__(self, managed: ContainerManager, container: Container) -> None:
        self.managed, self.container = managed, container
        self.most_bytes = container.spec.limits.disk_mb << 20
        self.is_over = False

    async def run(self) -> None:
        """Look until it is over, or gone."""
        engine, container = self.managed.engine, self.container.id
        for look in itertools.count():
            await asyncio.sleep(_LOOK_S)
            try:
                written = await in_thread(partial(engine.written_bytes, container))
                counts = look % _LOOKS_PER_COUNT == 0
                files = len(await in_thread(partial(engine.changed, container))) if counts else 0
            except ValueError:  # it is gone
                return
            except EngineError:
                continue
            self.is_over = written > self.most_bytes or files > most_files(self.most_bytes)
            if self.is_over:
                break
        await in_thread(partial(self.managed.discard, container))

    def refuse_over(self) -> None:
        """Raise AgentCausedError once it was ended."""
        if self.is_over:
            most = f"disk_mb={self.container.spec.limits.disk_mb}"
            raise AgentCausedError(f"the agent wrote more than {most} allows", cause="sandbox_lost")


class WholeSandbox(SupervisedSandbox):
    """A container of which the agent is root, and what it changed there, as the engine sees it."""

    def __init__(
        self,
        watch: DiskWatch,
        channel: Requests,
        record: SandboxRecord,
        listen: Callable[[], Awaitable[socket.socket]],
    ) -> None:
        """See `SupervisedSandbox`."""
        super().__init__(channel, watch.container.spec.workdir, record, listen, _committed)
        self.engine, self.container, self._watch = watch.managed.engine, watch.container, watch

    async def changed_paths(self) -> list[str]:
        """See `tools.sandbox.changes.changed_paths`."""
        return sorted(await self._outside(lambda: self._changed(())))

    async def changed_files(self, exclude: Collection[str], max_bytes: int) -> bytes:
        """See `tools.sandbox.changes.changed_files`."""
        return await self._outside(lambda: self._packed(exclude, max_bytes))

    async def put_changed(self, archive: bytes) -> None:
        """See `tools.sandbox.changes.put_changed`."""
        removed, rest = await asyncio.to_thread(self._split, archive)
        argv = ["python3", "-I", "-S", "-c", _REMOVE]
        done = await self.exec(argv, stdin=removed, timeout_s=_REMOVE_S)
        if done.exit_code:
            raise OSError(errno.EIO, f"not removed: {done.stderr.decode('utf-8', 'replace')[-200:]}")
        await self._outside(lambda: self.engine.put_archive(self.container.id, rest))

    async def _outside(self, call: Any) -> Any:
        try:
            return await in_thread(call)
        except (EngineError, tarfile.TarError) as error:
            self._watch.refuse_over()
            raise SandboxUnavailable(f"the engine does not give or take the files: {error}") from error

    def _own(self) -> tuple[str, ...]:
        return (*_OURS, *(place for _, place in self.container.spec.held))

    def _changed(self, exclude: Collection[str]) -> dict[str, int]:
        """Paths that the agent's programs changed, with how."""
        own = (*self._own(), *(posixpath.normpath(path) for path in exclude))
        found = dict(self.engine.changed(self.container.id))
        return {path: kind for path, kind in found.items() if not _is_in(path, own)}

    def _packed(self, exclude: Collection[str], max_bytes: int) -> bytes:
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode="w") as archive, self.engine.frozen(self.container.id):
            changed = self._changed(exclude)
            # What is below a new folder comes with it.
            tops = [
                path
                for path, kind in changed.items()
                if kind != _NEW or changed.get(posixpath.dirname(path)) != _NEW
            ]
            for path in tops:
                if changed[path] == _REMOVED:
                    gone = tarfile.TarInfo(path[1:])
                    gone.pax_headers = {_GONE: "1"}
                    archive.addfile(gone)
            counts = Counter(map(posixpath.dirname, tops))
            crowded = {folder for folder, count in counts.items() if count > _CROWDED and folder != "/"}
            asked = [
                path
                for path in {*tops, *crowded}
                if crowded.isdisjoint(map(str, PurePosixPath(path).parents))
            ]
            if len(asked) > _MOST_ARCHIVES:
                raise OSError(
                    errno.EFBIG, f"{len(asked)} files of the image were changed, or folders made in it"
                )
            for path in sorted(asked):
                with_all = path in crowded or changed[path] == _NEW
                self._add(archive, path, changed, max_bytes, with_all=with_all)
        return made.getvalue()

    def _add(
        self,
        archive: tarfile.TarFile,
        path: str,
        changed: Mapping[str, int],
        max_bytes: int,
        *,
        with_all: bool,
    ) -> None:
        """What was changed of a path, and `with_all` of what is below it."""
        around = posixpath.dirname(path)
        with closing(self.engine.archive(self.container.id, path)) as chunks:
            try:
                source = tarfile.open(fileobj=cast("IO[bytes]", _Chunks(chunks)), mode="r|")  # noqa: SIM115
            except EngineError as error:
                if error.missing:
                    return  # its name is no UTF-8, or it was removed and another folder took its place
                raise
            for member in source:
                at, target = (
                    posixpath.normpath(posixpath.join(around, name))
                    for name in (member.name, member.linkname)
                )
                if at not in changed or (member.islnk() and target not in changed):
                    continue
                member.name = at[1:]
                member.linkname = target[1:] if member.islnk() else member.linkname
                if archive.offset + member.size > max_bytes:
                    raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
                archive.addfile(member, source.extractfile(member) if member.isreg() else None)
                if not with_all:
                    return

    def _split(self, archive: bytes) -> tuple[bytes, bytes]:
        """What is to be removed, and an archive of the rest; nothing where a verifier's files are."""
        own, removed, rest = self._own(), list[bytes](), io.BytesIO()
        with (
            tarfile.open(fileobj=io.BytesIO(archive)) as source,
            tarfile.open(fileobj=rest, mode="w") as kept,
        ):
            for member in source:
                if _is_in(f"/{member.name}", own):
                    continue
                if _GONE in member.pax_headers:
                    removed.append(os.fsencode(f"/{member.name}"))
                else:
                    kept.addfile(member, source.extractfile(member) if member.isreg() else None)
        return b"\0".join(removed), rest.getvalue()


async def _committed(sandbox: SupervisedSandbox) -> Snapshot:
    """An image of the container, which keeps where its programs start."""
    assert isinstance(sandbox, WholeSandbox)
    engine, container = sandbox.engine, sandbox.container
    config = {"WorkingDir": container.spec.workdir, "Labels": labels()}
    image = await in_thread(partial(engine.commit, container.id, config))

    async def discard() -> None:
        # What cannot be removed now is an orphan once this process has ended.
        with suppress(EngineError):
            await in_thread(partial(engine.remove_image, image))

    return Snapshot(options={"image": image}, discard=discard)


class _Chunks:
    """What comes in pieces, to be read."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._data = chunks, b""

    def read(self, count: int) -> bytes:
        """As many bytes, fewer at the end."""
        parts, missing = list[bytes](), count
        while missing:
            self._data = self._data or next(self._chunks, b"")
            if not self._data:
                break
            parts.append(self._data[:missing])
            self._data = self._data[missing:]
            missing -= len(parts[-1])
        return b"".join(parts)


def _is_in(path: str, folders: Collection[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)
