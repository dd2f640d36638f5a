"""What watches a run stands behind queues: whatever it does, the run ends with the same record."""

import asyncio
import os
import re
import subprocess
import sys
import threading
from contextlib import suppress
from types import SimpleNamespace

import pytest

from environments.record.recorder import read_groups
from environments.run import tracking
from environments.run.process_run import process
from environments.run.tracking import MOST_JOBS, Observers
from tests.environments.chat.chat_env import Chat, chat
from tests.environments.write_file import quiet


@pytest.fixture
def released(monkeypatch):
    """What hangs waits for this event, which is set at the end of the test."""
    monkeypatch.setattr(tracking, "END_S", 0.6)
    event = threading.Event()
    yield event
    event.set()


def exits():
    raise SystemExit(3)


FAULTS = {
    "hangs": lambda released: released.wait(),
    "raises": lambda _: 1 / 0,
    "exits": lambda _: exits(),
    "is slow": lambda released: released.wait(0.02),
}


def broken_traces(fault, monkeypatch):
    tracer = SimpleNamespace(start_span=lambda *_, **__: fault())
    monkeypatch.setattr(tracking, "configured_tracer", lambda: tracer)


def broken_charts(fault, monkeypatch, log=lambda fault: fault()):
    run = SimpleNamespace(log=lambda _: log(fault), finish=fault)
    monkeypatch.setattr(tracking, "start_charts", lambda service, *_: tracking.Charts(service, run, None))


def broken_end_of_charts(fault, monkeypatch):
    broken_charts(fault, monkeypatch, log=lambda _: None)


OBSERVERS = (broken_traces, broken_charts, broken_end_of_charts)


class Printing(Chat):
    """Its rollouts print, and are warned of."""

    async def score_turn(self, item, turn, ctx):
        sys.stdout.write("on stdout\n")
        sys.stderr.write("on stderr\n")
        return await super().score_turn(item, turn, ctx)


def scores(path):
    groups = sorted(read_groups(path), key=lambda each: each.group.item_id)
    return [[each.score for each in credited.group.trajectories] for credited in groups]


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("observer", OBSERVERS)
async def test_whatever_an_observer_does_the_run_ends_with_the_same_record(
    tmp_path, monkeypatch, released, observer, fault
):
    whole, watched = tmp_path / "whole.jsonl", tmp_path / "watched.jsonl"
    assert await process(chat(Printing, data_path_to_save_groups=str(whole)), quiet()) == 0
    observer(lambda: fault(released), monkeypatch)
    env = chat(Printing, data_path_to_save_groups=str(watched), use_wandb="charts" in observer.__name__)
    assert await process(env, quiet()) == 0
    assert scores(watched) == scores(whole)


async def test_what_a_hung_observer_did_not_get_is_counted_and_the_others_are_served(
    tmp_path, monkeypatch, released, caplog
):
    broken_traces(lambda: released.wait(), monkeypatch)
    console = quiet()
    assert await process(chat(Chat, data_path_to_save_groups=str(tmp_path / "r.jsonl")), console) == 0
    assert "r.jsonl" in console.file.getvalue()
    (line,) = [each for each in caplog.messages if each.startswith("dropped")]
    assert re.search(r": 3 traces$", line)


def test_a_queue_that_is_full_drops_and_counts():
    queue, done, released = Observers(), [], threading.Event()
    queue.put("a", released.wait)
    put = [queue.put("a", lambda: done.append(1)) for _ in range(2 * MOST_JOBS)]
    released.set()
    queue.end()
    assert put.count(True) == len(done) == 2 * MOST_JOBS - queue.dropped["a"] == MOST_JOBS - 1


FULL_PIPE = """
import os, sys
from environments.run import console_streams
console_streams.WAIT_S = 0.2
from turnwise.__main__ import main
main()
"""


@pytest.mark.parametrize("kind", ["pipe", "terminal"])
@pytest.mark.parametrize("command", ["process", "evaluate"])
def test_a_pipe_or_terminal_that_nobody_reads_holds_no_run(tmp_path, command, kind):
    reading, writing = os.pipe() if kind == "pipe" else os.openpty()
    os.set_blocking(writing, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writing, b"x" * 4096)
    os.set_blocking(writing, True)
    out = tmp_path / "out"
    arguments = [command, "word_guess", "--env.max_items", "2", "--env.group_size", "2", "--out", str(out)]
    try:
        ended = subprocess.run(
            [sys.executable, "-c", FULL_PIPE, *arguments], stdout=writing, stderr=writing, timeout=280
        )
    finally:
        os.close(reading)
        os.close(writing)
    assert ended.returncode == 0
    record = out if command == "process" else out / "record.jsonl"
    assert len(list(read_groups(record))) == 2 if command == "process" else record.is_file()


PRINTS = """
import sys
from environments.run import console_streams
from environments.run.console_streams import drop_unread_output, robust_console
console_streams.WAIT_S = 250  # its reader is a busy test
with robust_console():
    drop_unread_output()
    for number in range(20_000):
        print("x" * 100, number)
        print("y", number, file=sys.stderr)
"""


def test_much_output_that_is_read_is_whole_and_in_order():
    ended = subprocess.run(
        [sys.executable, "-c", PRINTS], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    numbers = [line.split(" ") for line in ended.stdout.splitlines()]
    assert numbers == [[text, str(n)] for n in range(20_000) for text in ("x" * 100, "y")]


async def test_runs_side_by_side_leave_the_streams_as_they_were(tmp_path):
    before = sys.stdout, sys.stderr
    runs = [chat(Printing, data_path_to_save_groups=str(tmp_path / name)) for name in "ab"]
    async with asyncio.timeout(60):
        codes = await asyncio.gather(*(process(each, quiet()) for each in runs))
    assert codes == [0, 0]
    assert (sys.stdout, sys.stderr) == before
