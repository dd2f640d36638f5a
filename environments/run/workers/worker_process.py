"""The supervisor of one worker: starts its process, passes requests, bounds its memory, knows how it ended.

The worker is a process of its own, so that whatever an environment's code does to it (exits, crashes, holds
the interpreter, eats the memory) is seen from here as it was.
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
from typing import TYPE_CHECKING, Any, Literal, cast

from environments.rollout.containment.hook_calls import InFlightNow
from environments.trajectory import Failure, Trajectory, TrajectoryGroup
from tools.sandbox.host.ownership import has_ended, identity

if TYPE_CHECKING:
    from environments.run.group_source import (
        FinishedGroup,  # a supervisor has no use for it, and it loads slowly
    )

HEAD = struct.Struct(">QQ")
"""Before each message between a worker and its supervisor: the request's number, and bytes that follow."""
NEWS, CANCEL, OWN_REQUEST = 0, 1, 2
"""What a worker sends unasked; a request to cancel another; what its supervisor asks: to open, to close."""
FIRST_REQUEST = 3
"""The numbers of what the driver asks begin here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    what: Literal["first", "run", "close"]
    item_id: str = ""
    epoch: int = 0
    item_hash: str = ""
    """Of the item as the driver has it: workers load the items themselves."""
    rolled_out: tuple[Trajectory | Failure, ...] = ()
    size: int | None = None
    max_row_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    facts: Mapping[str, str]
    """See `RunOrigin.facts`."""
    packages: Mapping[str, str]
    """Versions of the packages that the driver names."""
    tier: str = ""
    """See `Sandboxes.tier`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Why a worker cannot do what it was asked for."""

    text: str
    is_usage: bool
    """Whether the user's input is wrong (`UsageError`), else the run cannot go on."""
    trace: str = ""
    """Of the environment's code, where that broke."""
    missing_key: str = ""
    """What a `KeyError` of it named: perhaps a variable that only the driver's shell has."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The answer to a request that was cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a worker was asked for, and what it met until then that the driver judges by."""

    value: "TrajectoryGroup | FinishedGroup"
    met: tuple[str, ...]
    """Versions of the weights since the last answer or beat, oldest first, see `WeightVersions.met`."""
    read: tuple[str, ...]
    """Files that hooks and tools opened since the last answer, by the driver's paths, see `OpenedFiles`."""
    written: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """How a worker is, twice a second, and what it has to show."""

    in_flight: InFlightNow = field(default_factory=InFlightNow)
    met: tuple[str, ...] = ()
    """As of an `Answer`."""
    lines: tuple[str, ...] = ()
    """Since the last beat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """Code of the environment blocks the worker's event loop for good, which ends it."""

    item_id: str
    epoch: int
    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """How a worker ended while it was asked for something."""

    cause: str
    """Such as `exit code 13`, in words."""
    trace: str = ""
    """The end of what it printed to its standard error."""
    blocked: Blocked | None = None
    """Whose fault it was, where that is known."""
    with_supervisor: bool = False
    """Whether its supervisor is gone with it, so that no other worker can be opened there."""


def packed(number: int, value: object) -> bytes:
    content = value if isinstance(value, bytes) else pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    return HEAD.pack(number, len(content)) + content


async def next_message(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The next message. Raises asyncio.IncompleteReadError at the end."""
    number, size = HEAD.unpack(await reader.readexactly(HEAD.size))
    return cast(int, number), await reader.readexactly(cast(int, size))


def read_value(content: bytes) -> Any:
    """The value of a message: both ends run the same code as one user, and nobody else writes to them."""
    return pickle.loads(content)


_PREFIX = "turnwise-worker."
_CLEAN = 'exec 3<&0; { cat <&3; rm -rf -- "$0"; } >/dev/null &'
"""Waits for the end of a worker's supervisor, even by SIGKILL; no child of it, as Ray ends those with it."""


@contextmanager
def unpacked(files: Mapping[str, bytes] | None, folder: str) -> Generator[str]:
    """The root below which the files and `folder` lie, as long as it is entered; empty where none are needed.

    They go with this process, however it ends, and what one left here that could not is taken away.
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
            file = Path(below(root, name))
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        Path(below(root, folder)).mkdir(parents=True, exist_ok=True)
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)
        cleaner.communicate()


def below(root: str, path: str) -> str:
    """Where an absolute path of the driver's is for this worker."""
    return root + path


def path_below(root: str, path: Sequence[str], own: Sequence[str]) -> list[str]:
    """Where a worker finds modules: as the driver, or as the machine it is on, then in what was sent."""
    if not root:
        return list(path)
    sent = [root + each for each in path if each and os.path.isdir(root + each)]  # noqa: PTH112
    return [*own, *sent]


_LOOK_S = 0.1
"""Between two looks at the memory of a worker."""
_SILENT_S = 30.0
"""Beyond the limit for code that blocks the event loop: native code may hold the interpreter, too."""
_LAST_S = 10.0
"""For the end of the interpreter, after the environment is closed."""
_DRAIN_S = 0.5
_MOST_LINES = 200
"""Between two beats; a worker that prints more is cut short."""
_TRACE_LINES = 40
_CLOSED = (ConnectionError, RuntimeError)
"""What a write to a worker that ended raises; the latter in the event loop that Ray uses."""
_SHARE = 0.8
"""Of a machine's memory that workers may have, all together."""
_START = (
    "import sys; sys.path[:] = {path!r}; "
    "from environments.run.workers.rollout_worker import main; main({fd}, {parent})"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStart:
    """What a supervisor needs to know; what the worker itself reads is `spec`."""

    spec: bytes
    """A pickled `EnvSpec`."""
    path: Sequence[str]
    """Where the driver's Python finds modules."""
    folder: str
    """The driver's current one."""
    files: Mapping[str, bytes] | None
    """By absolute path: what a worker elsewhere does not have; `None`: it runs where the driver does."""
    variables: Mapping[str, str]
    """Of its environment: all of them where the driver runs, those beside the machine's own elsewhere."""
    max_memory: int | None
    """Bytes that its process may have of its own; `None`: its share of the machine's."""
    count: int
    """Of workers in all."""
    at_once: int
    """Groups that keep it busy."""
    blocked_s: float
    """See `AgentEnvConfig.hook_block_s`."""


class WorkerProcess:
    """One worker after another, each from `open` to its end; one that ended answers with its `Death`."""

    def __init__(self, start: WorkerStart) -> None:
        self._start = start
        self._asked: dict[int, asyncio.Future[bytes | Death]] = {}
        self._lines: deque[str] = deque()
        self._left_out = 0
        self._death: Death | None = Death(cause="it was not started")

    async def open(self) -> bytes | Death:
        """Start a process that opens its environment: a pickled `Opened` or `Refused`."""
        self._beat, self._trace = Beat(), deque[str](maxlen=_TRACE_LINES)
        self._blocked: Blocked | None = None
        self._killed_for = ""
        self._heard_at: float | None = None  # `setup` may take its time
        self._folders = ExitStack()
        try:
            reader, printed = await self._started()
        except OSError as error:
            self._folders.close()
            return Death(cause=f"it cannot be started: {error}")
        self._death = None
        self._ending = asyncio.create_task(self._end(reader, printed))
        self._watching = asyncio.create_task(self._watch())
        answer = await self.ask(self._start.spec, OWN_REQUEST)
        self._heard_at = monotonic()
        return answer

    async def _started(self) -> tuple[asyncio.StreamReader, asyncio.StreamReader]:
        start, loop = self._start, asyncio.get_running_loop()
        environ = dict(start.variables)
        if start.files is not None:
            # Ray's own are for Ray's own processes.
            mine = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
            environ = mine | environ
        root = self._folders.enter_context(unpacked(start.files, start.folder))
        ours, theirs = socket.socketpair()
        with theirs:
            path = path_below(root, start.path, sys.path)
            code = _START.format(path=path, fd=theirs.fileno(), parent=os.getpid())
            self._process = subprocess.Popen(  # noqa: ASYNC220  # milliseconds
                [sys.executable, "-u", "-c", code, root],
                cwd=below(root, start.folder),
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
        """The answer to a pickled request; `number` is what `cancel` names it by."""
        if self._death is not None:
            return self._death
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            with suppress(*_CLOSED):  # then it ended, which `_end` finds out
                self._writer.write(packed(number, request))
                await self._writer.drain()
            return await answer
        finally:
            self._asked.pop(number, None)

    async def cancel(self, number: int) -> None:
        """Cancel a request, which is answered all the same."""
        with suppress(*_CLOSED):
            self._writer.write(packed(CANCEL, number))

    async def beat(self) -> Beat | Death:
        """How it is, with the lines that came since it was last asked for."""
        if self._death is not None and not self._lines:
            return self._death
        lines, left_out = tuple(self._lines), self._left_out
        self._lines.clear()
        self._left_out = 0
        if left_out:
            lines = (*lines, f"({left_out} more lines are left out)")
        beat, self._beat = replace(self._beat, lines=lines), replace(self._beat, met=())
        return beat

    async def close(self, limit_s: float) -> bytes | Death:
        """Have it close its environment, or kill it where that takes too long.

        Returns a pickled `Refused` if its teardown broke.
        """
        answer = asyncio.create_task(self.ask(pickle.dumps(Request(what="close")), OWN_REQUEST))
        await asyncio.wait({answer}, timeout=limit_s)
        if answer.done() and self._death is None:  # it ends by itself
            await asyncio.wait({self._ending}, timeout=_LAST_S)
        await self.kill(f"it was still closing its environment after {limit_s:g} s")
        return await answer

    async def kill(self, why: str) -> None:
        """End it now, with all that it started."""
        if self._death is None:
            self._kill(why)
            await asyncio.wait({self._ending})

    def _kill(self, why: str) -> None:
        self._killed_for = self._killed_for or why
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    async def _end(self, reader: asyncio.StreamReader, printed: asyncio.StreamReader) -> None:
        """Read all that it sends and prints; then say how it ended to all who wait for an answer."""
        printing = asyncio.create_task(self._read_lines(printed))
        reading = asyncio.create_task(self._read_messages(reader))
        ended = asyncio.ensure_future(asyncio.to_thread(self._process.wait))
        # Either may go on without the other: it closed its end, or what it started holds that open.
        await asyncio.wait({reading, ended}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({ended}, timeout=_LAST_S)
        self._kill("" if ended.done() else "it no longer answered")  # and what it started
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
        for each in self._asked.values():
            if not each.done():
                each.set_result(self._death)

    async def _read_messages(self, reader: asyncio.StreamReader) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                number, content = await next_message(reader)
                if self._heard_at is not None:
                    self._heard_at = monotonic()
                if number == NEWS:
                    self._take_news(read_value(content))
                elif (answer := self._asked.get(number)) is not None and not answer.done():
                    answer.set_result(content)

    def _take_news(self, news: Beat | Blocked) -> None:
        if isinstance(news, Blocked):
            self._blocked = news
            return
        # A beat that nobody has asked for yet is part of the next.
        self._beat = replace(news, met=self._beat.met + news.met, lines=())
        for line in news.lines:
            self._add_line(line)

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
        """Kill it where it has too much memory, or gives no sign of life."""
        most = self._start.max_memory or _share_of_memory(self._start)
        silent_s = self._start.blocked_s + _SILENT_S
        while True:
            await asyncio.sleep(_LOOK_S)
            if (used := _own_memory(self._process.pid)) > most:
                self._kill(
                    f"it had {used / 2**30:.1f} GiB of memory, and a worker may have {most / 2**30:.1f} GiB "
                    f"(--worker-memory)"
                )
            elif self._heard_at is not None and monotonic() - self._heard_at > silent_s:
                self._kill(f"it gave no sign of life for {silent_s:g} s: native code holds the interpreter")


def _own_memory(pid: int) -> int:
    """Bytes of a process that it shares with no other; 0 once it has ended."""
    try:
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def _share_of_memory(limits: WorkerStart) -> int:
    """A worker's part of the machine's memory, if all that fit run here: one for each core, elsewhere."""
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
