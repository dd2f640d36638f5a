"""What a sandbox costs, beside a plain persistent shell in the same run.

    python -m tests.benchmarks.bench_sandbox [--backend local] [--tier C] [--network full] [--image NAME]

Budgets: a shell command at most 2 times a plain one; start to first result at most 10 ms alone and 300 ms for
64 at once, and 50 ms on a copy of 50 MB that were prepared where overlays can be mounted; 1,000 idle local
sandboxes in 1.5 GB.
"""

import argparse
import asyncio
import math
import os
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from pathlib import Path

from tools.sandbox import Opening, find_backend
from tools.sandbox.base import Sandbox, SandboxLimits
from tools.sandbox.check import Target
from tools.sandbox.conformance import hosts
from tools.sandbox.layers import take_snapshot

CROWD = 64
REPOSITORY = "for i in $(seq 50); do mkdir d$i; head -c 1000000 /dev/urandom | split -b 20000 - d$i/f; done"


async def main() -> None:
    """Run everything and print a line for each budget."""
    options = arguments()
    given = (("tier", options.tier), ("image", options.image))
    target = Target(
        backend=options.backend,
        options={key: value for key, value in given if value},
        limits=SandboxLimits(network=options.network),
    )
    print(f"load before     {os.getloadavg()[0]:.2f}")
    async with target.open() as sandbox:
        print(f"sandbox         {sandbox.record.backend} {sandbox.record.tier}, {os.cpu_count()} cores")
    await commands(target, options.commands)
    await starts(target, options.starts)
    await crowd(target)
    await prepared(target, options.starts)
    if options.idle:
        await idle(target, options.idle)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="local")
    parser.add_argument("--tier", help="local: B or C")
    parser.add_argument("--network", default="none", help="none or full; tier C needs full")
    parser.add_argument("--image", help="docker: the image")
    parser.add_argument("--commands", type=int, default=300)
    parser.add_argument("--starts", type=int, default=30)
    parser.add_argument("--idle", type=int, default=1000)
    return parser.parse_args()


async def commands(target: Target, count: int) -> None:
    """One command in the persistent shell, in a plain persistent shell, and on its own."""
    plain = await asyncio.create_subprocess_exec(
        "bash", "--noprofile", "--norc", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert plain.stdin is not None
    assert plain.stdout is not None

    async def in_plain() -> None:
        plain.stdin.write(b"{ /bin/true\n} </dev/null; echo $?\n")
        assert await plain.stdout.readline() == b"0\n"

    async with target.open() as sandbox:
        # Taken in turns, so that a busy machine is busy for all of them.
        calls: list[Callable[[], Awaitable[object]]] = [
            in_plain, lambda: sandbox.shell("/bin/true"), lambda: sandbox.exec(["/bin/true"])
        ]  # fmt: skip
        spent: list[list[float]] = [[], [], []]
        for _ in range(count):
            for call, times in zip(calls, spent, strict=True):
                times.append(await timed(call))
    plain.stdin.close()
    await plain.wait()
    base = quantile(spent[0], 0.5)
    for name, times in zip(("plain shell", "shell", "exec"), spent, strict=True):
        print(f"{name:<16}{show(times)}, {quantile(times, 0.5) / base:.2f} times the plain shell")


async def starts(target: Target, count: int) -> None:
    """From the wish for a sandbox to the first result, one at a time."""
    spent = [await one_start(target.open) for _ in range(count)]
    print(f"start, alone    {show(spent)} to the first result")


async def one_start(opened: Callable[[], AbstractAsyncContextManager[Sandbox]]) -> float:
    """Return the seconds from the wish for a sandbox to its first result."""
    started = time.perf_counter()
    async with opened() as sandbox:
        await sandbox.exec(["/bin/true"])
        return time.perf_counter() - started


async def prepared(target: Target, count: int) -> None:
    """The same, beginning with a repository of 50 MB in 2,500 files."""
    limits = replace(target.limits, disk_mb=200)
    opening = Opening(target.backend, find_backend(target.backend), limits, dict(target.options))
    async with opening as sandbox:
        await sandbox.exec(REPOSITORY)
        started = time.perf_counter()
        snapshot = await take_snapshot(sandbox)
        print(f"snapshot        {time.perf_counter() - started:.2f} s for 50 MB, once")
    spent = [await one_start(lambda: opening.beginning_with(snapshot)) for _ in range(count)]
    print(f"copy, alone     {show(spent)} to the first result")
    await snapshot.discard()


async def crowd(target: Target) -> None:
    """The same for many at once."""
    walls = []
    for _ in range(3):
        async with AsyncExitStack() as stack:
            started = time.perf_counter()

            async def one(stack: AsyncExitStack = stack) -> None:
                sandbox = await stack.enter_async_context(target.open())
                await sandbox.exec(["/bin/true"])

            await asyncio.gather(*(one() for _ in range(CROWD)))
            walls.append(time.perf_counter() - started)
    print(
        f"start, {CROWD}       {min(walls) * 1000:.0f} ms best of 3, {max(walls) * 1000:.0f} ms worst, "
        "until all have a result"
    )


async def idle(target: Target, count: int) -> None:
    """Memory of many sandboxes that do nothing: their processes, and everything that the machine has less."""
    before, started = available_mb(), time.perf_counter()
    async with AsyncExitStack() as stack:
        for start in range(0, count, CROWD):
            batch = range(start, min(start + CROWD, count))
            await asyncio.gather(*(stack.enter_async_context(target.open()) for _ in batch))
        opened = time.perf_counter() - started
        await asyncio.sleep(1)
        # At once: looking through all processes takes long enough for others to change what is available.
        less = before - available_mb()
        pss = sum(hosts.pss_bytes(pid) for pid in hosts.descendants(os.getpid())) / (1 << 20)
        print(
            f"{count} idle       {pss:.0f} MB of processes, {less:.0f} MB in all, open after {opened:.1f} s"
        )


async def timed(call: Callable[[], Awaitable[object]]) -> float:
    """Seconds of one call."""
    started = time.perf_counter()
    await call()
    return time.perf_counter() - started


def quantile(values: list[float], share: float) -> float:
    """The value below which this share of them lies."""
    return sorted(values)[min(len(values) - 1, math.floor(share * len(values)))]


def show(values: list[float]) -> str:
    """Best, median and 95 % of times in ms."""
    best, middle, high = (1000 * quantile(values, share) for share in (0.0, 0.5, 0.95))
    return f"best {best:.2f} ms, p50 {middle:.2f} ms, p95 {high:.2f} ms"


def available_mb() -> float:
    """Memory that the machine could still give."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / 1024
    sys.exit("no MemAvailable in /proc/meminfo")


if __name__ == "__main__":
    asyncio.run(main())
