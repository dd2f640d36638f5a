"""Containers with a root agent: changes, a verifier's files, and a disk limit."""

import asyncio
import errno
import io
import itertools
import os
import posixpath
import socket
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, TypeVar, cast

from tools.errors import AgentCausedError, SandboxUnavailable
from tools.sandbox.base import ExecResult, Sandbox, SandboxFileError, SandboxRecord, Snapshot
from tools.sandbox.docker.container import Container
from tools.sandbox.docker.engine import NOT_FOUND, EngineError
from tools.sandbox.docker.manager import ContainerManager, in_thread
from tools.sandbox.docker.orphans import labels
from tools.sandbox.host.layout import RUN_DIR, VERIFIER_DIR, most_files
from tools.sandbox.host.ownership import identity
from tools.sandbox.host.supervised import Requests, SupervisedSandbox
from tools.sandbox.inside import held_files
from tools.sandbox.inside.messages import FileRequest

_LOOK_S = 2.0
_LOOKS_PER_COUNT = 5
"""Counting files makes the engine list them all."""
_LOOKS_APART = 10
"""Pause between two looks, in durations of a look: engines may be slow."""
_LONGEST_PATH = 3584
"""The kernel allows 4,096; the engine prepends a folder."""
_HOST_DISK = (errno.ENOSPC, errno.EIO, errno.EDQUOT)
"""Errors of the host's disk, which does not limit `whole` containers."""
_TESTS = "/tests"
"""A verifier's folder in published task formats."""
_MOST_ARCHIVES = 4000
"""Most archives per verdict: one for each changed file of the image and each new folder."""
_CROWDED = 100
"""Changes in a folder above which the whole folder is requested."""
_OURS = (
    RUN_DIR, VERIFIER_DIR, "/dev", "/proc", "/sys", "/.dockerenv", "/etc/hosts", "/etc/hostname",
    "/etc/resolv.conf", "/etc/mtab",
)  # fmt: skip
_CHANGED, _NEW, _REMOVED = range(3)
_NO_UTF8 = "\ufffd"
"""The engine's replacement of invalid UTF-8."""
_IN_MEMORY = (RUN_DIR, "/dev")
_GONE = "turnwise.gone"
"""Header that marks a removed path."""

T = TypeVar("T")
_REMOVE = """
import errno, os, shutil, sys
def check(_, path, failure):
    if failure[1].errno not in (errno.EBUSY, errno.ENOTEMPTY): raise failure[1]  # a verifier's file is there
for path in filter(None, sys.stdin.buffer.read().split(b"\\0")):
    if os.path.isdir(path) and not os.path.islink(path): shutil.rmtree(path, onerror=check)
    elif os.path.lexists(path): os.unlink(path)
"""
_REMOVE_S = 120.0
_COUNT = """
import os, sys, time
most = int(sys.stdin.read())
boot, = [int(line.split()[1]) for line in open("/proc/stat") if line.startswith("btime")]
started = int(open("/proc/1/stat").read().rpartition(")")[2].split()[19])
since = boot + started // os.sysconf("SC_CLK_TCK") - 1
device, left, new, longest = os.lstat("/").st_dev, ["/"], 0, 0
while left:
    try: entries = list(os.scandir(left.pop()))
    except OSError: continue
    for each in entries:
        if time.process_time() > 5 or new > most: left.clear(); break
        state = os.lstat(each.path) if len(os.fsencode(each.path)) < 4096 else None
        longest = max(longest, len(os.fsencode(each.path)))
        if state is None: continue
        new += state.st_ctime >= since  # which no program can set
        if each.is_dir(follow_symlinks=False) and state.st_dev == device: left.append(each.path)
print(new, longest)
"""
_COUNT_S = 30.0


@contextmanager
def hold_on_host(files: Mapping[str, bytes], workdir: str) -> Generator[tuple[tuple[str, str], ...]]:
    """Write a verifier's files and yield their mounts, which root inside cannot change.

    `/tests` is one mount. Elsewhere each file is a mount, which root can move with its folder.
    """
    with tempfile.TemporaryDirectory(prefix=f"turnwise.{identity(os.getpid())}.") as base:
        folder = Path(base) / "held"
        folder.mkdir()
        held_files.keep(list(files.items()), str(folder), workdir, VERIFIER_DIR)
        mounts = {str(folder): VERIFIER_DIR}
        for path in files:
            at = posixpath.join(workdir, path)
            is_test = at.startswith(f"{_TESTS}/") and at == posixpath.join("/", path)
            mounts[held_files.locate(_TESTS if is_test else path, str(folder))] = _TESTS if is_test else at
        yield tuple(mounts.items())


class DiskWatch:
    """Ends a container before it fills the engine's disk."""

    def __init__(self, managed: ContainerManager, container: Container) -> None:
        self.managed, self.container = managed, container
        self.most_bytes = container.spec.limits.disk_mb << 20
        self.most_files = most_files(self.most_bytes)
        self._evidence = ""

    async def run(self) -> None:
        """Check a container until it exceeds its limit or is gone."""
        engine, container, took_s = self.managed.engine, self.container.id, 0.0
        for look in itertools.count():
            await asyncio.sleep(max(_LOOK_S, _LOOKS_APART * took_s))
            begun = time.monotonic()
            try:
                written = await in_thread(partial(engine.count_written_bytes, container))
                counts = look % _LOOKS_PER_COUNT == 0
                files = len(await in_thread(partial(engine.list_changes, container))) if counts else 0
            except EngineError as error:
                if error.status == NOT_FOUND:
                    return
                continue
            finally:
                took_s = time.monotonic() - begun
            if written > self.most_bytes or files > self.most_files:
                self._evidence = f"{files} files, {written} bytes"
                break
        await in_thread(partial(self.managed.discard, container))

    def refuse_over(self) -> None:
        if self._evidence:
            most = f"disk_mb={self.container.spec.limits.disk_mb}"
            raise AgentCausedError(
                f"the agent wrote more than {most} allows: {self._evidence}", cause="sandbox_lost"
            )

    def refuse_unreadable(self, files: int, longest: int) -> None:
        """Raise AgentCausedError if the engine cannot read so many files, or so long a path."""
        if files > self.most_files:
            most = f"the {self.most_files} that disk_mb={self.container.spec.limits.disk_mb} allows"
            raise unreadable(f"more files were changed than {most}: {files}")
        if longest > _LONGEST_PATH:
            raise unreadable(f"a path of {longest} bytes, and an engine reads {_LONGEST_PATH}")


def unreadable(evidence: str) -> AgentCausedError:
    return AgentCausedError(f"what the agent changed cannot be taken: {evidence}", cause="unreadable_files")


class WholeSandbox(SupervisedSandbox):
    """A container with a root agent; the engine reads its changes from outside."""

    def __init__(
        self,
        watch: DiskWatch,
        channel: Requests,
        record: SandboxRecord,
        listen: Callable[[], Awaitable[socket.socket]],
    ) -> None:
        super().__init__(channel, watch.container.spec.workdir, record, listen)
        self.engine, self.container, self._watch = watch.managed.engine, watch.container, watch
        self._own = (*_OURS, *(place for _, place in watch.container.spec.held))
        self._volumes = watch.container.spec.image.volumes
        self._given: Mapping[str, object] = {}

    async def note_volumes(self) -> None:
        """Note what volumes hold before the agent: the engine does not say what changes in them."""
        if self._volumes:
            self._given = await self.outside(self._list_volumes)

    async def snapshot(self) -> Snapshot:
        config = {"WorkingDir": self.container.spec.workdir, "Labels": labels()}
        volumes = await self.outside(self._pack_volumes)
        image = await self.outside(partial(self.engine.commit, self.container.id, config))

        async def fill(copy: Sandbox) -> None:
            await cast("WholeSandbox", copy).put_changed(volumes)

        async def discard() -> None:
            # An image that cannot be removed now is removed as an orphan later.
            with suppress(EngineError):
                await in_thread(partial(self.engine.remove_image, image))

        return Snapshot(options={"image": image}, fill=fill if volumes else None, discard=discard)

    async def changed_paths(self) -> list[str]:
        return sorted(await self.outside(lambda: self._find_changes(())))

    async def changed_files(self, exclude: Collection[str], max_bytes: int) -> bytes:
        return await self.outside(lambda: self._pack(exclude, max_bytes))

    async def put_changed(self, archive: bytes) -> None:
        removed, rest = await asyncio.to_thread(self._split, archive)
        if removed:
            argv = ["python3", "-I", "-S", "-c", _REMOVE]
            try:
                done = await self.exec(argv, stdin=removed, timeout_s=_REMOVE_S)
            except OSError as error:
                raise SandboxUnavailable(f"a fresh machine starts no program: {error}") from error
            if done.exit_code:
                words = done.stderr.decode("utf-8", "replace")[-200:]
                raise SandboxUnavailable(f"a fresh machine removes no files: {words or done}")
        await self.outside(lambda: self.engine.put_archive(self.container.id, rest))

    async def outside(self, call: Callable[[], T]) -> T:
        """Call the engine, with a second try; raise AgentCausedError if the agent's files are the cause."""
        for left in (1, 0):
            try:
                return await in_thread(call)
            except (EngineError, tarfile.TarError) as error:
                self._watch.refuse_over()
                if not left:
                    raise SandboxUnavailable(
                        f"the engine does not give or take the files: {error}"
                    ) from error
                await self._look_inside()
        raise AssertionError

    async def _look_inside(self) -> None:
        """Raise AgentCausedError if there are too many files for the engine."""
        most = str(self._watch.most_files).encode()
        try:
            async with self.paused():
                found = await self.run_python(_COUNT, stdin=most, timeout_s=_COUNT_S)
        except SandboxFileError as error:
            if error.errno == errno.EAGAIN:
                raise unreadable("the agent's processes leave no room for one that reads them") from error
            return
        if not found.exit_code:
            self._watch.refuse_unreadable(*map(int, found.stdout.split()))

    async def _on_files(self, request: FileRequest) -> ExecResult:
        try:
            return await super()._on_files(request)
        except SandboxFileError as error:
            if error.errno in _HOST_DISK and not _is_in(request.path, _IN_MEMORY):
                raise SandboxUnavailable(f"the disk of the engine: {error}") from error
            raise

    def _find_changes(self, exclude: Collection[str]) -> dict[str, int]:
        own = (*self._own, *(posixpath.normpath(path) for path in exclude))
        found = dict(self.engine.list_changes(self.container.id))
        held = self._list_volumes()
        found |= {path: _NEW for path, facts in held.items() if self._given.get(path) != facts}
        gone = self._given.keys() - held.keys()
        found |= {path: _REMOVED for path in gone if posixpath.dirname(path) not in gone}
        self._watch.refuse_unreadable(len(found), max((len(os.fsencode(path)) for path in found), default=0))
        return {path: kind for path, kind in found.items() if not _is_in(path, own)}

    def _list_volumes(self) -> dict[str, object]:
        """Return what tells a change of each path in the image's volumes, which the engine leaves out."""
        found = dict[str, object]()
        for volume in self._volumes:
            with closing(self.engine.archive(self.container.id, volume)) as chunks:
                for m in tarfile.open(fileobj=cast("IO[bytes]", _Chunks(chunks)), mode="r|"):  # noqa: SIM115
                    at = posixpath.normpath(posixpath.join(posixpath.dirname(volume), m.name))
                    found[at] = (m.type, m.mode, m.uid, m.gid, m.size, m.mtime, m.linkname)
        return found

    def _pack_volumes(self) -> bytes:
        made, paths = io.BytesIO(), dict.fromkeys(self._list_volumes(), _NEW)
        with tarfile.open(fileobj=made, mode="w") as archive:
            for volume in self._volumes:
                self._add(archive, volume, paths, sys.maxsize, with_all=True)
        return made.getvalue() if paths else b""

    def _pack(self, exclude: Collection[str], max_bytes: int) -> bytes:
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode="w") as archive, self.engine.freeze(self.container.id):
            changed = self._find_changes(exclude)
            for path in [path for path, kind in changed.items() if kind == _REMOVED]:
                del changed[path]
                gone = tarfile.TarInfo(path[1:])
                gone.pax_headers = {_GONE: "1"}
                archive.addfile(gone)
            tops = [
                path
                for path, kind in changed.items()
                if kind != _NEW or changed.get(posixpath.dirname(path)) != _NEW
            ]
            counts = Counter(map(posixpath.dirname, tops))
            crowded = {folder for folder, count in counts.items() if count > _CROWDED and folder != "/"}
            asked = [
                path
                for path in {*tops, *crowded}
                if crowded.isdisjoint(map(str, PurePosixPath(path).parents))
            ]
            if len(asked) > _MOST_ARCHIVES:
                raise unreadable(f"{len(asked)} files of the image were changed, or folders made in it")
            absent = set(changed)
            for path in sorted(asked):
                with_all = path in crowded or changed[path] == _NEW
                absent -= self._add(archive, path, changed, max_bytes, with_all=with_all)
            # The engine silently skips unreadable files.
            absent = {path for path in absent if _NO_UTF8 not in path}
            for path in itertools.islice(absent, _MOST_ARCHIVES):
                if not self.engine.is_socket(self.container.id, path):
                    raise EngineError(f"the engine left out {path}", None)
            if len(absent) > _MOST_ARCHIVES:
                raise unreadable(f"{len(absent)} sockets")
        return made.getvalue()

    def _add(
        self,
        archive: tarfile.TarFile,
        path: str,
        changed: Mapping[str, int],
        max_bytes: int,
        *,
        with_all: bool,
    ) -> set[str]:
        """Add changed members of a path (`with_all`: and below); return all paths read."""
        around, read = posixpath.dirname(path), set[str]()
        with closing(self.engine.archive(self.container.id, path)) as chunks:
            try:
                source = tarfile.open(fileobj=cast("IO[bytes]", _Chunks(chunks)), mode="r|")  # noqa: SIM115
            except EngineError as error:
                if error.status == NOT_FOUND and _NO_UTF8 in path:
                    return read
                raise
            for member in source:
                at, target = (
                    posixpath.normpath(posixpath.join(around, name))
                    for name in (member.name, member.linkname)
                )
                read.add(at)
                if at not in changed or (member.islnk() and target not in changed):
                    continue
                # These headers would override the name.
                given = member.pax_headers.items()
                member.pax_headers = {name: value for name, value in given if "path" not in name}
                member.name = at[1:]
                member.linkname = target[1:] if member.islnk() else member.linkname
                if archive.offset + member.size > max_bytes:
                    raise unreadable(f"more than {max_bytes} bytes, with {at} of {member.size}")
                archive.addfile(member, source.extractfile(member) if member.isreg() else None)
                if not with_all:
                    break
        return read

    def _split(self, archive: bytes) -> tuple[bytes, bytes]:
        """Return removed paths and an archive of the rest, without a verifier's files."""
        own, removed, rest = self._own, list[bytes](), io.BytesIO()
        with (
            tarfile.open(fileobj=io.BytesIO(archive)) as source,
            tarfile.open(fileobj=rest, mode="w") as kept,
        ):
            for member in source:
                at, is_gone = f"/{member.name}", _GONE in member.pax_headers
                is_below = member.isdir() or is_gone or not any(each.startswith(f"{at}/") for each in own)
                if _is_in(at, own) or not is_below:
                    continue
                if is_gone:
                    removed.append(os.fsencode(f"/{member.name}"))
                else:
                    kept.addfile(member, source.extractfile(member) if member.isreg() else None)
        return b"\0".join(removed), rest.getvalue()


class _Chunks:
    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._data = chunks, b""

    def read(self, count: int) -> bytes:
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
