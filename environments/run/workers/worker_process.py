"""Supervisor of one worker process: start it, pass requests on, bound its memory, report how it ended.

The environment runs in a separate process so that an exit, a crash, a held interpreter or a lack of memory is
observed from outside.
"""

import asyncio
import os
import pickle
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Literal, cast

from environments.rollout.containment.hook_calls import InFlightNow
from environments.trajectory import Failure, Trajectory, TrajectoryGroup
from tools.sandbox.host.ownership import has_ended, identity

if TYPE_CHECKING:
    from environments.run.group_source import (
        FinishedGroup,  # loads slowly, and a supervisor does not need it
    )

HEAD = struct.Struct(">QQ")
"""Header of each message: request number, and bytes of the content."""
NEWS, CANCEL, OWN_REQUEST = 0, 1, 2
"""Message numbers: news of the worker, cancellations, and the supervisor's own requests."""
FIRST_REQUEST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    what: Literal["first", "run", "close"]
    item_id: str = ""
    epoch: int = 0
    item_hash: str = ""
    """Hash of the driver's item: workers load the items themselves."""
    rolled_out: tuple[Trajectory | Failure, ...] = ()
    size: int | None = None
    max_row_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFacts:
    facts: Mapping[str, str]
    packages: Mapping[str, str]
    tier: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    text: str
    is_usage: bool
    trace: str = ""
    missing_key: str = ""
    """Key of a `KeyError`: perhaps a variable that only the driver's shell has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a worker sends back for a finished request."""

    value: "TrajectoryGroup | FinishedGroup"
    new_versions: tuple[str, ...]
    read: tuple[str, ...]
    written: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    in_flight: InFlightNow = field(default_factory=InFlightNow)
    new_versions: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockedLoop:
    item_id: str
    epoch: int
    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    cause: str
    trace: str = ""
    blocked: BlockedLoop | None = None
    with_supervisor: bool = False
    """Whether the supervisor is gone too, so that it cannot open another worker."""


def pack_message(number: int, value: object) -> bytes:
    content = value if isinstance(value, bytes) else pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    return HEAD.pack(number, len(content)) + content


async def read_message(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    number, size = HEAD.unpack(await reader.readexactly(HEAD.size))
    return cast(int, number), await reader.readexactly(cast(int, size))


_PREFIX = "turnwise-worker."
_CLEAN = 'exec 3<&0; { cat <&3; rm -rf -- "$0"; } >/dev/null &'
"""Removes the folder after the supervisor's end, even by SIGKILL. Its own session keeps Ray from ending it
with the actor."""


@contextmanager
def unpack_files(files: Mapping[str, bytes] | None, folder: str) -> Generator[str]:
    """Context manager: write files below a new root folder and yield it, or "" without files.

    The folder is removed when the process ends, even by SIGKILL.
    """
    if files is None:
        yield ""
        return
    scratch = Path(tempfile.gettempdir())
    for left in scratch.glob(f"{_PREFIX}*"):
        if has_ended(left.name.removeprefix(_PREFIX).rpartition(".")[0]):
            shutil.rmtree(left, ignore_errors=True)
    root = tempfile.mkdtemp(prefix=f"{_PREFIX}{identity(os.getpid())}.", dir=scratch)
    command = ["/bin/sh", "-c", _CLEAN, root]
    cleaner = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    try:
        for name, content in files.items():
            file = Path(root + name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        Path(root + folder).mkdir(parents=True, exist_ok=True)
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)
        cleaner.communicate()


_MEMORY_CHECK_S = 0.1
_SILENT_S = 30.0
"""Added to the limit for a blocked event loop, since native code may hold the interpreter too."""
_LAST_S = 10.0
_DRAIN_S = 0.5
_MOST_LINES = 200
_TRACE_LINES = 40
_CLOSED = (ConnectionError, RuntimeError)
"""Errors of a write to a worker that ended; RuntimeError comes from the event loop that Ray uses."""
_SHARE = 0.8
_START = (
    "import sys; sys.path[:] = {path!r}; "
    "from environments.run.workers.rollout_worker import main; main({fd}, {parent})"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStart:
    spec: bytes
    path: Sequence[str]
    folder: str
    files: Mapping[str, bytes] | None
    """Contents by absolute path, for a worker on another machine; `None` on the driver's machine."""
    variables: Mapping[str, str]
    """All environment variables on the driver's machine; elsewhere, additions to the machine's."""
    max_memory: int | None
    """Bytes that only this process uses; `None`: its share of the machine's memory."""
    count: int
    at_once: int
    blocked_s: float


class WorkerProcess:
    """Runs one worker after another, each from `open` to its end. After the end, calls return its `Death`."""

    def __init__(self, start: WorkerStart) -> None:
        self._start = start
        self._pending: dict[int, asyncio.Future[bytes | Death]] = {}
        self._lines: deque[str] = deque()
        self._left_out = 0
        self._death: Death | None = Death(cause="it was not started")

    async def open(self) -> bytes | Death:
        self._beat, self._trace = Beat(), deque[str](maxlen=_TRACE_LINES)
        self._blocked: BlockedLoop | None = None
        self._killed_for = ""
        self._last_message_at: float | None = None  # `setup` has no limit
        self._folders = ExitStack()
        try:
            reader, printed = await self._start_process()
        except OSError as error:
            self._folders.close()
            return Death(cause=f"it cannot be started: {error}")
        self._death = None
        self._ending = asyncio.create_task(self._end(reader, printed))
        self._watching = asyncio.create_task(self._watch())
        answer = await self.ask(self._start.spec, OWN_REQUEST)
        self._last_message_at = monotonic()
        return answer

    async def _start_process(self) -> tuple[asyncio.StreamReader, asyncio.StreamReader]:
        start, loop = self._start, asyncio.get_running_loop()
        environ = dict(start.variables)
        if start.files is not None:
            mine = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
            environ = mine | environ
        root = self._folders.enter_context(unpack_files(start.files, start.folder))
        ours, theirs = socket.socketpair()
        with theirs:
            path = list(start.path)
            if root:  # on another machine: its own modules, then the files that were sent
                sent = [root + each for each in path if each and os.path.isdir(root + each)]  # noqa: ASYNC240, PTH112
                path = [*sys.path, *sent]
            code = _START.format(path=path, fd=theirs.fileno(), parent=os.getpid())
            self._process = subprocess.Popen(  # noqa: ASYNC220  # milliseconds
                [sys.executable, "-u", "-c", code, root],
                cwd=root + start.folder,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # a ^C at the terminal is the driver's to handle
            )
        reader, self._writer = await asyncio.open_connection(sock=ours)
        printed = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(printed), self._process.stdout)
        return reader, printed

    async def ask(self, request: bytes, number: int) -> bytes | Death:
        if self._death is not None:
            return self._death
        answer = self._pending[number] = asyncio.get_running_loop().create_future()
        try:
            with suppress(*_CLOSED):  # `_end` handles the end
                self._writer.write(pack_message(number, request))
                await self._writer.drain()
            return await answer
        finally:
            self._pending.pop(number, None)

    async def cancel(self, number: int) -> None:
        with suppress(*_CLOSED):
            self._writer.write(pack_message(CANCEL, number))

    async def beat(self) -> Beat | Death:
        if self._death is not None and not self._lines:
            return self._death
        lines, left_out = tuple(self._lines), self._left_out
        self._lines.clear()
        self._left_out = 0
        if left_out:
            lines = (*lines, f"({left_out} more lines are left out)")
        beat, self._beat = replace(self._beat, lines=lines), replace(self._beat, new_versions=())
        return beat

    async def close(self, limit_s: float) -> bytes | Death:
        """Close the environment, or kill it after `limit_s`. Return a pickled `Refusal` if that failed."""
        answer = asyncio.create_task(self.ask(pickle.dumps(Request(what="close")), OWN_REQUEST))
        await asyncio.wait({answer}, timeout=limit_s)
        if answer.done() and self._death is None:
            await asyncio.wait({self._ending}, timeout=_LAST_S)
        await self.kill(f"it was still closing its environment after {limit_s:g} s")
        return await answer

    async def kill(self, why: str) -> None:
        if self._death is None:
            self._kill(why)
            await asyncio.wait({self._ending})

    def _kill(self, why: str) -> None:
        self._killed_for = self._killed_for or why
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    async def _end(self, reader: asyncio.StreamReader, printed: asyncio.StreamReader) -> None:
        printing = asyncio.create_task(self._read_lines(printed))
        reading = asyncio.create_task(self._read_messages(reader))
        ended = asyncio.ensure_future(asyncio.to_thread(self._process.wait))
        # A worker may close its end before it exits, or its children may hold the end open.
        await asyncio.wait({reading, ended}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({ended}, timeout=_LAST_S)
        self._kill("" if ended.done() else "it no longer answered")  # with its children
        code = await ended
        await asyncio.wait({printing, reading}, timeout=_DRAIN_S)
        for task in (printing, reading, self._watching):
            task.cancel()
        self._writer.close()
        cause = self._killed_for if code == -signal.SIGKILL and self._killed_for else _in_words(code)
        if self._blocked is not None:
            cause = self._blocked.failure.error
        self._death = Death(cause=cause, trace="\n".join(self._trace), blocked=self._blocked)
        self._folders.close()
        for each in self._pending.values():
            if not each.done():
                each.set_result(self._death)

    async def _read_messages(self, reader: asyncio.StreamReader) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                number, content = await read_message(reader)
                if self._last_message_at is not None:
                    self._last_message_at = monotonic()
                if number == NEWS:
                    news: Beat | BlockedLoop = pickle.loads(content)
                    if isinstance(news, BlockedLoop):
                        self._blocked = news
                        continue
                    new_versions = self._beat.new_versions + news.new_versions
                    self._beat = replace(news, new_versions=new_versions, lines=())
                    for line in news.lines:
                        self._add_line(line)
                elif (answer := self._pending.get(number)) is not None and not answer.done():
                    answer.set_result(content)

    async def _read_lines(self, output: asyncio.StreamReader) -> None:
        while True:
            try:
                line = await output.readuntil()
            except asyncio.IncompleteReadError as error:
                line = error.partial
                if not line:
                    return
            except asyncio.LimitOverrunError as error:
                line = await output.readexactly(error.consumed)
            text = line.decode("utf-8", "replace").rstrip("\n")
            self._trace.append(text)
            self._add_line(text)

    def _add_line(self, line: str) -> None:
        if len(self._lines) < _MOST_LINES:
            self._lines.append(line)
        else:
            self._left_out += 1

    async def _watch(self) -> None:
        most = self._start.max_memory or _share_of_memory(self._start)
        silent_s = self._start.blocked_s + _SILENT_S
        while True:
            await asyncio.sleep(_MEMORY_CHECK_S)
            if (used := _own_memory(self._process.pid)) > most:
                self._kill(
                    f"it had {used / 2**30:.1f} GiB of memory, and a worker may have {most / 2**30:.1f} GiB "
                    f"(--worker-memory)"
                )
            elif self._last_message_at is not None and monotonic() - self._last_message_at > silent_s:
                self._kill(f"it gave no sign of life for {silent_s:g} s: native code holds the interpreter")


def _own_memory(pid: int) -> int:
    try:
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def _share_of_memory(limits: WorkerStart) -> int:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):  # `max`, or no control groups
        memory = min(memory, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    here = limits.count if limits.files is None else min(limits.count, os.cpu_count() or 1)
    return int(memory * _SHARE) // here


def _in_words(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    if code == -signal.SIGKILL:
        return "killed, as by the system where memory is short"
    with suppress(ValueError):
        return f"ended by {signal.Signals(-code).name}"
    return f"ended by signal {-code}"
