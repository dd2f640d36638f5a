"""Lifecycles of sandboxes that are cancelled and killed at random moments, and what is left of them."""

import asyncio
import os
import random
import signal
from dataclasses import dataclass
from pathlib import Path

from tools.errors import SandboxError
from tools.sandbox.check import Target
from tools.sandbox.checks.bench import first_process_of, host_pids, marker, sleeper, until
from tools.sandbox.checks.hosts import descendants
from tools.sandbox.inventory import list_sandboxes

ENDS = ("leave", "cancel the opening", "cancel a command", "kill process 1", "raise")


@dataclass(frozen=True, kw_only=True)
class Leftovers:
    """What is there: all zero, and as many descriptors as before, when nothing was left."""

    processes: int
    sandboxes: int
    directories: int
    descriptors: int


async def lifecycles(target: Target, count: int, *, seed: int, at_once: int = 8) -> dict[str, int]:
    """Run many lifecycles with random ends; how many ended in which way."""
    draw = random.Random(seed)
    ends = [draw.choice(ENDS) for _ in range(count)]
    delays = [draw.random() for _ in range(count)]
    slots = asyncio.Semaphore(at_once)
    mark = marker()

    async def one(end: str, delay: float) -> None:
        async with slots:
            await _ended(target, end, delay, mark)

    await asyncio.gather(*(one(end, delay) for end, delay in zip(ends, delays, strict=True)))
    assert not await _none_left(mark)
    return {end: ends.count(end) for end in ENDS}


async def leftovers(target: Target) -> Leftovers:
    """What this process has now."""
    owned = [entry for entry in await list_sandboxes(target.backend) if entry.owner == os.getpid()]
    return Leftovers(
        processes=len(descendants(os.getpid())),
        sandboxes=len(owned),
        directories=len(list(Path("/tmp").glob(f"turnwise.*-{os.getpid()}-*"))),
        descriptors=len(list(Path("/proc/self/fd").iterdir())),
    )


async def _ended(target: Target, end: str, delay: float, mark: str) -> None:
    task = asyncio.create_task(_session(target, end, mark))
    if end == "cancel the opening":
        await asyncio.sleep(delay * 0.06)
        task.cancel()
    elif end == "cancel a command":
        await asyncio.sleep(0.05 + delay * 0.2)
        task.cancel()
    try:
        await task
    except (asyncio.CancelledError, SandboxError, ZeroDivisionError):
        # Cancelled, killed and raised on purpose; whatever else comes out is a bug.
        return


async def _session(target: Target, end: str, mark: str) -> None:
    async with target.open() as sandbox:
        await sandbox.shell(f"sleep {mark} & setsid sleep {mark} & cd /tmp")
        if end == "kill process 1":
            own = marker()
            os.kill(first_process_of(await sleeper(sandbox, own)), signal.SIGKILL)
            await sandbox.exec("true")
        elif end == "cancel a command":
            await sandbox.exec(f"trap '' TERM; sleep {mark}", timeout_s=600)
        elif end == "raise":
            raise ZeroDivisionError
        else:
            await sandbox.exec("echo done")


async def _none_left(mark: str) -> list[int]:
    await until(lambda: not host_pids(mark), within_s=5)
    return host_pids(mark)
