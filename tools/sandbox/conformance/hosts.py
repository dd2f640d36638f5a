"""Host programs with sandboxes, which checks start, kill and measure: `python -m … SCENARIO TARGET …`."""

import asyncio
import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from tools.errors import TurnwiseError
from tools.sandbox import list_sandboxes, reap_sandboxes
from tools.sandbox.conformance.checks import Target
from tools.sandbox.host.ownership import children

_ENOUGH = 5
"""Successful openings after which no higher descriptor limit is tried."""
_BEAT_S = 0.002


async def hold(target: Target, mark: str) -> None:
    """Open a sandbox with two processes and wait to be killed."""
    async with target.open() as sandbox:
        await sandbox.shell(f"setsid sleep {mark} >/dev/null 2>&1 &")
        print("up", flush=True)  # noqa: T201  # the protocol with the check
        await sandbox.shell(f"sleep {mark}", timeout_s=600)


async def sweep(target: Target) -> object:
    async with target.open() as sandbox:
        await sandbox.exec("true")
    return len(await reap_sandboxes(target.backend))


async def starve(target: Target) -> object:
    """Open sandboxes with a growing descriptor limit, so that each step of opening fails once."""
    async with target.open():
        pass
    before, failed, foreign = await _count_owned(target), 0, list[str]()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(open_descriptors())
    # Occupy every free descriptor below.
    gaps = [os.dup(0)]
    while gaps[-1] < highest:
        gaps.append(os.dup(0))
    os.close(gaps.pop())
    worked = 0
    for room in range(40):
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + room, hard))
        try:
            async with target.open() as sandbox:
                await sandbox.exec("true")
            worked += 1
        except TurnwiseError:
            failed += 1
        except OSError:
            failed += 1
            foreign.append(traceback.format_exc())
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if worked == _ENOUGH:
            break
    for gap in gaps:
        os.close(gap)
    return {"before": before, "after": await _count_owned(target), "failed": failed, "foreign": foreign}


async def stall(target: Target, count: str) -> object:
    """Measure the longest stall of the event loop during openings, without waits for a processor."""
    async with target.open():
        pass
    worst = 0.0
    opened = asyncio.Event()

    async def beat() -> None:
        nonlocal worst
        while not opened.is_set():
            started, waited = time.monotonic(), _cpu_wait_s()
            await asyncio.sleep(_BEAT_S)
            worst = max(worst, time.monotonic() - started - _BEAT_S - (_cpu_wait_s() - waited))

    heart = asyncio.create_task(beat())
    async with AsyncExitStack() as stack:
        await asyncio.gather(*(stack.enter_async_context(target.open()) for _ in range(int(count))))
        opened.set()
        await heart
    return {"stall_ms": worst * 1000}


async def idle(target: Target, count: str) -> object:
    """Measure the memory of idle sandboxes, with shared pages counted in parts (PSS)."""
    async with AsyncExitStack() as stack:
        for _ in range(int(count)):
            sandbox = await stack.enter_async_context(target.open())
            await sandbox.exec("true")
        pids = descendants(os.getpid())
        try:
            used = sum(pss_bytes(pid) for pid in pids)
        except PermissionError:
            # A supervisor of the agent's user hides its memory.
            pids, used = [], 0
    return {"processes": len(pids), "each_mb": used / int(count) / (1 << 20)}


async def spawn_cost(target: Target, megabytes: str) -> object:
    """Measure this process's processor time of one opening, before and after it allocates memory."""

    async def cheapest() -> float:
        costs: list[float] = []
        for _ in range(4):
            started = time.process_time()
            async with target.open():
                pass
            costs.append(time.process_time() - started)
        return min(costs)

    small = await cheapest()
    ballast = bytearray(int(megabytes) << 20)
    ballast[:: resource.getpagesize()] = b"x" * len(range(0, len(ballast), resource.getpagesize()))
    large = await cheapest()
    return {"small_s": small, "large_s": large, "held_mb": len(ballast) >> 20}


async def outage(target: Target) -> object:
    """Open a sandbox without engine and programs."""
    started = time.monotonic()
    try:
        async with target.open() as sandbox:
            understood, outcome = (await sandbox.exec("true")).exit_code == 0, "it works"
    except TurnwiseError as error:
        understood, outcome = True, f"{type(error).__name__}: {error}"
    return {"understood": understood, "outcome": outcome, "seconds": time.monotonic() - started}


SCENARIOS: Mapping[str, Callable[..., Coroutine[Any, Any, object]]] = {
    each.__name__: each for each in (hold, sweep, starve, stall, idle, spawn_cost, outage)
}


def descendants(pid: int) -> list[int]:
    own = children(pid)
    return own + [deeper for child in own for deeper in descendants(child)]


def pss_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    return 0


async def _count_owned(target: Target) -> dict[str, int]:
    return {
        "descriptors": len(open_descriptors()),
        "processes": len(descendants(os.getpid())),
        "sandboxes": sum(entry.owner == os.getpid() for entry in await list_sandboxes(target.backend)),
    }


def open_descriptors() -> list[int]:
    return [int(path.name) for path in Path("/proc/self/fd").iterdir()]


def _cpu_wait_s() -> float:
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0


if __name__ == "__main__":
    scenario, target, *arguments = sys.argv[1:]
    json.dump(asyncio.run(SCENARIOS[scenario](Target.from_json(target), *arguments)), sys.stdout)
