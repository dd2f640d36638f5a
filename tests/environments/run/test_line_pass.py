"""A pass over a record: the same from one process and from several, and whole or not there."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from environments.run import line_pass
from environments.run.line_pass import results
from tools.errors import RecordError, RunError


@dataclass(frozen=True)
class Doing:
    """Gives each line with its number; what is in it may break something."""

    def prepare(self) -> None:
        sys.stdout.write("prepared, on what is no channel of answers")

    def __call__(self, path: Path, number: int, lines: Sequence[bytes]) -> list[tuple[int, bytes, bool]]:
        for at, line in enumerate(lines, start=number):
            if line == b"refused\n":
                raise RecordError(f"{path}, line {at}: refused")
            if line == b"broken\n":
                raise ZeroDivisionError
            if line == b"no file\n":
                raise FileNotFoundError("weights")
            if line == b"killed\n":
                os.kill(os.getpid(), signal.SIGKILL)
        return [(at, line, os.getpid() == PARENT) for at, line in enumerate(lines, start=number)]


PARENT = os.getpid()


@pytest.fixture(autouse=True)
def short_stretches(monkeypatch):
    monkeypatch.setattr(line_pass, "STRETCH_BYTES", 40)


@pytest.fixture
def record(tmp_path):
    def write(*lines):
        path = tmp_path / "r.jsonl"
        path.write_text("".join(f"{line}\n" for line in lines))
        return path

    return write


LINES = [f"line {index} {'x' * (index % 90)}" for index in range(60)]


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_every_line_is_seen_once_in_its_order_with_its_number(record, processes):
    seen = [each for part in results(record(*LINES), Doing(), processes=processes) for each in part]
    assert [(number, line.decode()) for number, line, _ in seen] == [
        (number, f"{line}\n") for number, line in enumerate(LINES, start=1)
    ]


@pytest.mark.parametrize(
    ("last", "seen"), [(b'{"torn', False), (b'{"whole": 1}', True)], ids=["torn", "whole"]
)
def test_a_last_line_without_an_end_is_seen_where_it_is_whole(record, last, seen):
    path = record(*LINES)
    path.write_bytes(path.read_bytes() + last)
    assert (list(results(path, Doing(), processes=2))[-1][-1][1] == last) is seen


def test_a_carriage_return_ends_no_line(record):
    (seen,) = (part for part in results(record("one\r two", "three"), Doing(), processes=1))
    assert [(number, line) for number, line, _ in seen] == [(1, b"one\r two\n"), (2, b"three\n")]


@pytest.mark.parametrize("permitted", [0, 1])
def test_processes_that_the_system_does_not_permit_are_done_without(record, monkeypatch, permitted):
    start, started = subprocess.Popen, []

    def some(*args, **options):
        if len(started) == permitted:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        started.append(start(*args, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", some)
    seen = [line for part in results(record(*LINES), Doing(), processes=2) for _, line, _ in part]
    assert (seen, len(started)) == ([f"{line}\n".encode() for line in LINES], permitted)


def test_an_error_of_the_work_is_not_told_as_one_of_the_record(record):
    with pytest.raises(FileNotFoundError, match="weights"):
        list(results(record("no file"), Doing(), processes=1))


def test_a_small_record_starts_no_process(record):
    assert all(in_parent for part in results(record(*LINES), Doing()) for *_, in_parent in part)


@pytest.mark.parametrize("processes", [1, 2])
def test_the_first_line_that_is_refused_is_named(record, processes):
    path = record(*LINES[:20], "refused", *LINES[20:], "refused")
    with pytest.raises(RecordError, match=r"r\.jsonl, line 21: refused"):
        list(results(path, Doing(), processes=processes))


def test_an_error_in_a_worker_is_told_with_its_place(record):
    with pytest.raises(RunError, match="ZeroDivisionError"):
        list(results(record("broken"), Doing(), processes=2))


def test_a_killed_worker_ends_the_pass(record):
    with pytest.raises(RunError, match=r"a worker process that read .*r\.jsonl was ended by SIGKILL"):
        list(results(record(*LINES, "killed"), Doing(), processes=2))


def test_no_worker_outlives_a_pass_that_is_given_up(record):
    before = set(_children(os.getpid()))
    passing = results(record(*LINES), Doing(), processes=2)
    next(passing)
    workers = set(_children(os.getpid())) - before
    passing.close()
    assert workers
    assert not any(map(_lives, workers))


def test_a_missing_record_cannot_be_read(tmp_path):
    with pytest.raises(RecordError, match="cannot read"):
        list(results(tmp_path / "none.jsonl", Doing()))


COMMAND = """
import sys, time
from pathlib import Path
from environments.run import line_pass
from tests.environments.run.test_line_pass import Doing
line_pass.STRETCH_BYTES = 40
for part in line_pass.results(Path(sys.argv[1]), Doing(), processes=2):
    print("going", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM], ids=lambda sent: sent.name)
def test_workers_end_with_the_command_however_it_ends(record, sent):
    root = str(Path(__file__).parents[3])
    command = subprocess.Popen(
        [sys.executable, "-c", COMMAND, str(record(*LINES))],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": root},
    )
    assert command.stdout.readline()
    workers = _children(command.pid)
    command.send_signal(sent)
    command.wait()
    deadline = time.monotonic() + 10
    while any(map(_lives, workers)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(workers) == 2
    assert not any(map(_lives, workers))


def _children(pid: int) -> list[int]:
    return [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
        if _lives(int(child))
    ]


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return False
    return state not in "ZX"
