"""An environment whose code reaches past its rollouts, an item for each way."""

import asyncio
import contextlib
import os
import sys
import threading

from environments.base_env import AgentEnv
from tests.adversarial.misbehaving_env import no_sandbox


async def exit_in_a_callback():
    asyncio.get_running_loop().call_soon(sys.exit)


async def exit_in_a_callback_of_a_thread():
    loop = asyncio.get_running_loop()
    threading.Thread(target=loop.call_soon_threadsafe, args=(sys.exit,)).start()


async def interrupt_in_a_callback():
    def interrupt():
        raise KeyboardInterrupt

    asyncio.get_running_loop().call_soon(interrupt)


async def exit_in_the_exception_handler():
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda *_: sys.exit(0))
    loop.call_soon(lambda: 1 / 0)
    await asyncio.sleep(0.01)


async def exit_in_a_task_without_our_factory():
    async def child():
        sys.exit(0)

    asyncio.get_running_loop().set_task_factory(None)
    task = asyncio.create_task(child())
    with contextlib.suppress(SystemExit):
        await task


async def stop_the_loop():
    asyncio.get_running_loop().stop()


async def fork_and_come_back():
    os.fork()


async def fork_and_exit():
    if os.fork() == 0:
        sys.exit(0)


async def close_the_console():
    sys.stdout.close()
    sys.stderr.close()


async def leave_a_task_that_never_ends():
    async def go_on():
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)

    LEFT.append(asyncio.create_task(go_on()))


async def leave_a_task_that_never_ends_without_our_factory():
    asyncio.get_running_loop().set_task_factory(None)
    await leave_a_task_that_never_ends()


LEFT = []
WAYS = [
    exit_in_a_callback,
    exit_in_a_callback_of_a_thread,
    interrupt_in_a_callback,
    exit_in_the_exception_handler,
    exit_in_a_task_without_our_factory,
    stop_the_loop,
    fork_and_come_back,
    fork_and_exit,
    close_the_console,
    leave_a_task_that_never_ends,
    leave_a_task_that_never_ends_without_our_factory,
]


class Escaping(AgentEnv):
    name = "escaping"

    def load_items(self):
        return [{"id": way.__name__, "number": number} for number, way in enumerate(WAYS)]

    def open_sandbox(self):
        return no_sandbox()

    def format_prompt(self, item):
        return "Say something."

    async def compute_reward(self, item, trajectory, ctx):
        if trajectory.sibling == 1:
            await WAYS[item["number"]]()
            await asyncio.sleep(0.01)
        return float(trajectory.sibling)


class ForkingInDef(Escaping):
    name = "forking_in_def"

    def compute_reward(self, item, trajectory, ctx):
        if trajectory.sibling == 1:
            os.fork()
        return float(trajectory.sibling)
