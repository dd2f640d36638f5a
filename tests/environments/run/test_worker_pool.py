"""Groups run many at once until they are done or a signal comes; the first rollout goes alone."""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from environments.rollout.items.tasks import GroupTask
from environments.run.worker_pool import MAX_ALIKE_FAILURES, AlikeFailuresError, first_alone, run_groups
from environments.testing import group_of
from environments.trajectory import Failure, StopReason
from tests.tables import cases


class Groups:
    """Groups that end when they are told to."""

    def __init__(self):
        self.started = []
        self.starts = asyncio.Queue()
        self.cancelled = []
        self.done = []
        self.may_end = asyncio.Event()

    async def run(self, key):
        self.started.append(key)
        self.starts.put_nowait(key)
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cancelled.append(key)
            raise
        return key * 10

    async def on_done(self, key, result):
        self.done.append((key, result))


async def started(groups, count):
    for _ in range(count):
        await groups.starts.get()


async def test_an_endless_source_is_read_only_as_far_as_groups_may_be_in_flight():
    groups, source = Groups(), itertools.count()
    run = asyncio.ensure_future(run_groups(source, groups.run, groups.on_done, max_in_flight=3))
    await started(groups, 3)
    for _ in range(50):
        await asyncio.sleep(0)
    assert (groups.started, next(source)) == ([0, 1, 2], 3)
    run.cancel()
    await asyncio.wait([run])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_cancels_what_is_in_flight_and_starts_nothing_new(number):
    groups = Groups()
    run = asyncio.ensure_future(run_groups(range(9), groups.run, groups.on_done, max_in_flight=2))
    await started(groups, 2)
    os.kill(os.getpid(), number)
    assert await run == 128 + number
    assert (groups.started, sorted(groups.cancelled), groups.done) == ([0, 1], [0, 1], [])


async def test_a_result_that_is_being_handed_over_is_not_cut_in_half_by_a_signal():
    writing, may_finish, written = asyncio.Event(), asyncio.Event(), []

    async def run_group(key):
        return key

    async def on_done(key, result):
        writing.set()
        await may_finish.wait()
        written.append(result)

    run = asyncio.ensure_future(run_groups([1, 2], run_group, on_done, max_in_flight=1))
    await writing.wait()
    os.kill(os.getpid(), signal.SIGINT)
    while signal.getsignal(signal.SIGINT) is not signal.SIG_DFL:  # noqa: ASYNC110 - nothing else tells
        await asyncio.sleep(0)
    may_finish.set()
    assert await run == 130
    assert written == [1]


async def test_an_error_is_raised_as_it_is_and_ends_the_other_groups():
    groups = Groups()

    async def run_group(key):
        if key == 1:
            await started(groups, 1)
            raise ValueError("broken")
        return await groups.run(key)

    with pytest.raises(ValueError, match="broken"):
        await run_groups([0, 1, 2], run_group, groups.on_done, max_in_flight=2)
    assert groups.cancelled == [0]


def test_a_second_signal_ends_the_process_at_once():
    program = """
import asyncio, signal
from environments.run.worker_pool import run_groups

async def stubborn(key):
    print("started", flush=True)
    try:
        await asyncio.sleep(600)
    finally:
        print("cancelled", flush=True)
        await asyncio.sleep(600)

async def on_done(key, result):
    pass

asyncio.run(run_groups([1], stubborn, on_done, max_in_flight=1))
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "cancelled\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == -signal.SIGINT


def test_a_second_signal_ends_a_process_whose_loop_an_environment_blocks():
    program = """
import asyncio, time
from environments.run.worker_pool import run_groups

async def blocking(key):
    print("started", flush=True)
    while True:
        time.sleep(0.01)

async def on_done(key, result):
    pass

asyncio.run(run_groups([1], blocking, on_done, max_in_flight=1))
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGTERM)
        while _handles(process.pid, signal.SIGTERM):
            os.sched_yield()
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(timeout=60) == -signal.SIGINT
        finally:
            process.kill()


def _handles(pid, number):
    """Whether a process still has a handler of its own for a signal."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    caught = next(int(line.split()[1], 16) for line in status if line.startswith("SigCgt"))
    return bool(caught >> (number - 1) & 1)


def failed(where="env.py:1 in compute_reward", **fields):
    failure = Failure(
        sibling=0, stop_reason=None, error="E: x", traceback="the traceback", turns=0, error_class="E"
    )
    return replace(group_of([]), failures=(replace(failure, where=where, **fields),))


async def begun(groups, *, has_good=False):
    """The tasks that are begun, the items that are bad, and what was said."""
    lines, bad, results = [], [], iter(groups)
    tasks = iter([GroupTask(item=n, item_id=str(n)) for n in range(9)])

    async def next_task():
        return next(tasks, None)

    async def roll_out(task):
        return next(results)

    async def on_bad(task):
        bad.append(task.item_id)

    tasks = await first_alone(next_task, roll_out, on_bad, lines.append, has_good=has_good)
    return [(task.item_id, len(task.rolled_out)) for task in tasks], bad, "\n".join(lines)


GOOD = group_of([[1.0]])


@cases(
    ("groups", "has_good", "begins_at"),
    [
        ([GOOD], False, 0),  # the only one that goes alone
        ([failed(), GOOD], False, 1),  # the environment's code broke: the next item goes alone
        ([*[failed()] * 5, GOOD], True, 5),  # where something has worked equal failures end no run
        ([failed(where=None, stop_reason=StopReason.POLICY_ERROR)], False, 0),  # it is not the environment's
    ],
)
async def test_items_go_alone_until_one_does_not_break_in_the_environments_code(groups, has_good, begins_at):
    tasks, bad, said = await begun(groups, has_good=has_good)
    assert (tasks, bad) == ([(str(begins_at), 1)], [str(each) for each in range(begins_at)])
    assert ("the traceback" in said) == (begins_at > 0)


@pytest.mark.parametrize("error", ["RewardError", "ConfigError", "RefusedSettingError"])
async def test_an_error_of_ours_about_the_environments_code_is_a_bug_of_it(error):
    of_ours = [failed(where=None, error_class=error, error=f"{error}: item {n}: no number") for n in range(3)]
    with pytest.raises(AlikeFailuresError, match=f"failed alike: {error}: item 2: no number"):
        await begun(of_ours)


async def test_equal_failures_end_the_run_and_are_told_once():
    with pytest.raises(
        AlikeFailuresError, match=f"first rollouts of {MAX_ALIKE_FAILURES} items failed alike: E at env"
    ):
        await begun([failed(), failed(where="other.py:2 in f"), failed(), failed()])
