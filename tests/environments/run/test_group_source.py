import asyncio
import os
import signal

from environments.run import group_source
from environments.run.group_source import FinishedGroups
from environments.run.worker_pool import run_groups
from environments.testing import group_of
from environments.trajectory import CreditedGroup


class Ended:
    """Groups that have ended already."""

    def __init__(self):
        self.asked = []

    async def run(self, task):
        self.asked.append(task)
        return CreditedGroup(
            group=group_of([[1.0], [0.0]]), advantages=((0.5,), (-0.5,)), policy="p", estimator="turn_return"
        )


async def test_a_group_that_is_serialised_when_a_signal_comes_is_handed_over_once(monkeypatch):
    serialised, source, done = group_source.serialised, Ended(), []
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()

    def interrupted(credited, **more):
        os.kill(os.getpid(), signal.SIGINT)
        asyncio.run_coroutine_threadsafe(stopping.wait(), loop).result(10)
        return serialised(credited, **more)

    async def on_done(task, finished):
        done.append((task, finished.line.credited.status))

    monkeypatch.setattr(group_source, "serialised", interrupted)
    groups = FinishedGroups(source, fingerprint="f")
    running = asyncio.ensure_future(run_groups([1, 2, 3], groups.run, on_done, max_in_flight=1))
    while signal.getsignal(signal.SIGINT) is not signal.SIG_DFL:  # noqa: ASYNC110 - nothing else tells
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    stopping.set()
    assert await running == 128 + signal.SIGINT
    assert (source.asked, done) == ([1], [(1, "ok")])
