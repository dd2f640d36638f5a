"""One function over all lines of a record: on all cores where it is large, in order, in bounded memory."""

import logging
import os
import pickle
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, Any, Generic, Protocol, TypeVar, cast

from environments.record.entries import whole_lines
from tools.errors import RecordError, RunError

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")
logger = logging.getLogger(__name__)

ALONE_BYTES = 32 << 20
"""Up to so many bytes of a record, no process is worth its start."""
STRETCH_BYTES = 2 << 20
_ASKED_AHEAD = 3
"""Stretches that a worker process is asked for before the first of them is taken."""
_WORKER = """
import sys
sys.path[:] = {path!r}
from environments.run.line_worker import main
main()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Some lines of a record that follow each other."""

    number: int
    """Of the first line, from 1."""
    start: int
    """Of the first line in the file, in bytes."""
    size: int


class LineWork(Protocol[T_co]):
    """What is done with lines. It is pickled for each worker process, and so are its results."""

    def prepare(self) -> None:
        """Do in a worker process what the command's own process has done already."""
        ...

    def __call__(self, path: Path, number: int, lines: Sequence[bytes]) -> T_co:
        """The result of these lines, the first of which has that number in the file."""
        ...


def results(path: Path, work: LineWork[T], *, processes: int | None = None) -> Iterator[T]:
    """What a function makes of all lines of a record, stretch by stretch, in their order.

    Args:
        path: the record.
        work: the function.
        processes: how many at once; `None`: one a core, and none but this one for a small record.

    Raises:
        RecordError: unreadable, and whatever else `work` raises.
        RunError: a worker process ended.
    """
    with ExitStack() as opened:
        with _reading(path):
            size = path.stat().st_size
            file = opened.enter_context(path.open("rb"))
        stretches = _stretches(path, file)
        wanted = processes or (_cores() if size > ALONE_BYTES else 1)
        workers = _workers(path, work, opened, wanted) if wanted > 1 else []
        if workers:
            yield from _side_by_side(workers, stretches)
        else:
            for each in stretches:
                yield work(path, each.number, lines_of(path, file.fileno(), each))


def lines_of(path: Path, file: int, stretch: Stretch) -> list[bytes]:
    """The lines of a stretch of an open record, each with its end.

    Raises:
        RecordError: unreadable.
    """
    with _reading(path):
        content = os.pread(file, stretch.size, stretch.start)
    return BytesIO(content).readlines()  # a carriage return ends none


@contextmanager
def _reading(path: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}") from error


def _cores() -> int:
    """Those that this process may use, as far as the system says it."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _stretches(path: Path, file: IO[bytes]) -> Iterator[Stretch]:
    number, start = 1, 0
    while piece := _whole_lines(path, file, start):
        yield Stretch(number=number, start=start, size=len(piece))
        number += piece.count(b"\n")
        start += len(piece)
    if os.fstat(file.fileno()).st_size > start:
        logger.warning("%s: line %d is cut short, as by a killed run, and left out", path, number)


def _whole_lines(path: Path, file: IO[bytes], start: int) -> bytes:
    with _reading(path):
        piece = os.pread(file.fileno(), STRETCH_BYTES, start)
        if piece and not piece.endswith(b"\n"):
            file.seek(start + len(piece))
            piece += file.readline()
        return piece if piece.endswith(b"\n") else b"".join(whole_lines(BytesIO(piece)))


def _workers(path: Path, work: LineWork[T], started: ExitStack, processes: int) -> "list[_Worker[T]]":
    """As many as the system permits; none where it permits none."""
    workers: list[_Worker[T]] = []
    try:
        for _ in range(processes):
            workers.append(started.enter_context(_Worker(path, work)))
    except OSError:
        return workers
    return workers


def _side_by_side(workers: "Sequence[_Worker[T]]", stretches: Iterator[Stretch]) -> Iterator[T]:
    asked: deque[_Worker[T]] = deque()
    for index, stretch in enumerate(stretches):
        worker = workers[index % len(workers)]
        worker.ask(stretch)
        asked.append(worker)
        if len(asked) >= _ASKED_AHEAD * len(workers):
            yield asked.popleft().answer()
    while asked:
        yield asked.popleft().answer()


class _Worker(Generic[T]):
    """A process of its own, which ends with this one, however it ends."""

    def __init__(self, path: Path, work: LineWork[T]) -> None:
        self._path = path
        # A program of its own: a fork would take over threads and locks of whatever runs here, and what the
        # standard library starts runs the user's main module once more. In a process group of its own, ^C
        # reaches this process alone, which ends the workers.
        self._process = subprocess.Popen(
            [sys.executable, "-c", _WORKER.format(path=sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,
        )
        self._asks = cast("IO[bytes]", self._process.stdin)
        self._answers = cast("IO[bytes]", self._process.stdout)
        self._send((path, work))

    def __enter__(self) -> "_Worker[T]":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._asks, self._answers):
            try:
                pipe.close()
            except BrokenPipeError:
                continue

    def ask(self, stretch: Stretch) -> None:
        """Have a stretch worked on, after those that were asked for before."""
        self._send(stretch)

    def answer(self) -> T:
        """The result of the first stretch that was asked for and not taken; waits for it."""
        try:
            answer: Any = pickle.load(self._answers)  # of a process that we started
        except (EOFError, pickle.UnpicklingError):
            raise self._ended() from None
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _send(self, message: object) -> None:
        try:
            pickle.dump(message, self._asks)
            self._asks.flush()
        except BrokenPipeError:
            raise self._ended() from None

    def _ended(self) -> RunError:
        code = self._process.wait()
        how = f"with {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
        return RunError(f"a worker process that read {self._path} was ended {how}; give the command again")
