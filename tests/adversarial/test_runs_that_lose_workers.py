"""No run ends with 0 while work is left, whatever an environment's code does to the tasks and the loop."""

import asyncio

import pytest

from environments.run.worker_pool import StoppedError, run_groups
from tests.adversarial.commands import evaluate, process, run


async def identity(key):
    return key


async def cancels_itself(key, result):
    raise asyncio.CancelledError


async def cancels_its_task(key, result):
    for task in asyncio.all_tasks():
        if task.get_coro().__qualname__.endswith(".worker"):
            task.cancel()
    await asyncio.sleep(0)


@pytest.mark.parametrize("on_done", [cancels_itself, cancels_its_task])
async def test_a_pool_whose_workers_are_cancelled_by_others_raises(on_done):
    with pytest.raises(StoppedError):
        await run_groups(range(9), identity, on_done, max_in_flight=2)


@pytest.mark.parametrize("command", [process, evaluate])
def test_code_that_cancels_every_task_does_not_end_the_run_with_0(tmp_path, command):
    assert run(command("CancellingAll", tmp_path)).returncode == 1
