"""Checks 103 to 110: opening, closing and everything that may fail in between."""

import asyncio
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from tools.errors import SandboxUnavailable
from tools.sandbox import list_sandboxes
from tools.sandbox.conformance.checks import (
    Bench,
    Target,
    check,
    equal,
    first_process_of,
    holds,
    host_pids,
    marker,
    raises,
    sleeper,
    until,
)
from tools.sandbox.conformance.hosts import open_descriptors

_GONE_WITHIN_S = 5.0
_LIFECYCLES = 8
_ORPHANS = "for i in 1 2 3 4 5 6 7 8; do (setsid true &); done"
_ZOMBIES = "for p in /proc/[0-9]*; do [ -O $p ] && cat $p/stat; done 2>/dev/null | grep -c ') Z '"
"""Only the agent's own: a sandbox may see the host's."""


@check(103, "Closing works with a command running, after a crash and when it is cancelled; calls then fail.")
async def close_is_idempotent(bench: Bench) -> None:
    async with bench.open() as sandbox:
        running = asyncio.create_task(sandbox.exec("sleep 1000", timeout_s=600))
        await asyncio.sleep(0.1)
    with raises(SandboxUnavailable, what="a command that ran when the sandbox closed"):
        await running
    for call in (sandbox.exec("true"), sandbox.shell("true"), sandbox.read_file("a")):
        with raises(SandboxUnavailable, what="a call after the sandbox closed"):
            await call
    mark = marker()
    async with bench.open() as sandbox:
        os.kill(first_process_of(await sleeper(sandbox, mark)), signal.SIGKILL)
    equal("processes after the crash", await _find_left(mark), [])


@check(104, "Creation that fails at any step, for want of descriptors, or is cancelled leaves nothing.")
async def failed_creation_leaves_nothing(bench: Bench) -> None:
    found = await bench.ask_host_program("starve")
    holds("some openings failed", found["failed"] > 0)
    equal("errors that are not ours", found["foreign"], [])
    equal("descriptors", found["after"]["descriptors"], found["before"]["descriptors"])
    equal("processes", found["after"]["processes"], found["before"]["processes"])
    equal("sandboxes", found["after"]["sandboxes"], 0)
    await _use(bench)
    before = await _resources(bench.target)
    for steps in (1, 3, 10, 30):
        opening = asyncio.create_task(_use(bench))
        await asyncio.sleep(0.002 * steps)
        opening.cancel()
        await asyncio.wait({opening})
    equal("what is left of cancelled openings", await _more_than(bench.target, before), {})


@check(105, "When the host process is killed its sandboxes end soon, at the latest when the next one starts.")
async def a_killed_host_leaves_nothing_alive(bench: Bench) -> None:
    mark = marker()
    host = await bench.host_program("hold", mark)
    assert host.stdout is not None
    equal("the host program", await host.stdout.readline(), b"up\n")
    holds("a process is alive inside", bool(await until(lambda: host_pids(mark), within_s=_GONE_WITHIN_S)))
    host.kill()
    await host.wait()
    if await _find_left(mark):
        await bench.ask_host_program("sweep")
    equal("processes left", await _find_left(mark), [])


@check(106, "Sweeping from another process leaves the sandboxes of living owners alone.")
async def a_sweep_spares_the_living(bench: Bench) -> None:
    mark = marker()
    await sleeper(bench.sandbox, mark)
    await bench.sandbox.shell("X=1")
    await bench.ask_host_program("sweep")
    equal("processes of this sandbox", len(host_pids(mark)), 1)
    result = await bench.sandbox.shell("echo $X")
    equal("its shell", (result.stdout, result.shell_restarted), (b"1\n", False))


@check(107, "A sandbox lives on when the threads that were there at its opening have ended.")
async def it_survives_the_thread_that_made_it(bench: Bench) -> None:

    async def scenario() -> bytes:
        loop = asyncio.get_running_loop()
        executor = ThreadPoolExecutor()
        loop.set_default_executor(executor)
        async with bench.open() as sandbox:
            executor.shutdown(wait=True)
            loop.set_default_executor(ThreadPoolExecutor())
            await asyncio.sleep(0.1)
            return (await sandbox.exec("echo on")).stdout

    equal("stdout", await asyncio.to_thread(asyncio.run, scenario()), b"on\n")


@check(108, "When process 1 is killed, a running call and the next one raise SandboxUnavailable.")
async def a_dead_sandbox_is_unavailable(bench: Bench) -> None:
    mark = marker()
    async with bench.open() as sandbox:
        first = first_process_of(await sleeper(sandbox, mark))
        running = asyncio.create_task(sandbox.exec("sleep 1000", timeout_s=600))
        await asyncio.sleep(0.1)
        os.kill(first, signal.SIGKILL)
        with raises(SandboxUnavailable, what="the running command"):
            await asyncio.wait_for(running, 20)
        with raises(SandboxUnavailable, what="the next command"):
            await asyncio.wait_for(sandbox.exec("true"), 20)


@check(109, "Orphans are all reaped: 16 for each sandbox of a crowd, 1,024 for one of 64.")
async def zombies_do_not_accumulate(bench: Bench) -> None:
    for _ in range(2 * bench.crowd):
        await bench.sandbox.exec(_ORPHANS)
    zombies = b""
    for _ in range(50):
        zombies = (await bench.sandbox.exec(_ZOMBIES)).stdout
        if zombies == b"0\n":
            break
        await asyncio.sleep(0.1)
    equal("zombies", zombies, b"0\n")


@check(110, "Descriptors, threads and sandboxes of this process are no more than before.")
async def nothing_accumulates_over_lifecycles(bench: Bench) -> None:
    await _use(bench)
    before = await _resources(bench.target)
    for _ in range(_LIFECYCLES):
        await _use(bench)
    equal("what is there beyond what was before", await _more_than(bench.target, before), {})


async def _use(bench: Bench) -> None:
    async with bench.open() as sandbox:
        await sandbox.shell("sleep 1000 & setsid sleep 1000 &")


async def _find_left(mark: str) -> list[int]:
    await until(lambda: not host_pids(mark), within_s=_GONE_WITHIN_S)
    return host_pids(mark)


async def _more_than(target: Target, before: dict[str, int]) -> dict[str, int]:
    """Return the growth of resources, after waiting for it to vanish."""
    deadline = time.monotonic() + _GONE_WITHIN_S
    while True:
        seen = await _resources(target)
        more = {name: count - before[name] for name, count in seen.items() if count > before[name]}
        if not more or time.monotonic() > deadline:
            return more
        await asyncio.sleep(0.05)


async def _resources(target: Target) -> dict[str, int]:
    return {
        "descriptors": len(open_descriptors()),
        "threads": sum(not thread.name.startswith("asyncio_") for thread in threading.enumerate()),
        "sandboxes": sum(entry.owner == os.getpid() for entry in await list_sandboxes(target.backend)),
    }
