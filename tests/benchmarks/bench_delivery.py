"""Cost of getting a group ready for the trainer, and how long the event loop stands still meanwhile.

    python -m tests.benchmarks.bench_delivery [--rows 8] [--tokens 16000] [--repeats 5]

The same rows with per-token advantages go through Turnwise's path (view, checks, JSON and gzip in a thread)
and through Atropos' own (`json.dumps` and `gzip.compress` in the event loop, inside `BaseEnv`). A task that
only sleeps for a millisecond measures the longest time that the event loop did not come round.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

from atroposlib.envs.base import BaseEnv

from environments.wire.payloads import Shape, pack
from environments.wire.training_rows import columns_of
from environments.wire.views import token_advantages
from tests.benchmarks.bench_record import sampled_group

TURNS = 20


async def measured(work: Callable[[], Awaitable[int]]) -> tuple[float, float, int]:
    """Seconds of the work, longest stall of the loop in seconds, bytes made."""
    stalls: list[float] = []

    async def tick() -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            stalls.append(time.perf_counter() - before - 0.001)

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0.05)
    stalls.clear()
    started = time.perf_counter()
    size = await work()
    took = time.perf_counter() - started
    await asyncio.sleep(0.01)
    ticking.cancel()
    return took, max(stalls), size


class Recording:
    """Stands where Atropos' code expects a session: takes the body and sends nothing."""

    size = 0

    def post(self, url: str, data: bytes, headers: dict[str, str]) -> None:
        self.size = len(data)


async def main(rows: int, tokens: int, repeats: int) -> None:
    # A third of the tokens is sampled.
    length = tokens // TURNS
    credited = sampled_group(rows, TURNS, length // 3, seen=length - length // 3)
    columns = columns_of(token_advantages(credited))

    async def ours() -> int:
        package = await asyncio.to_thread(pack, credited, Shape(group_size=rows))
        return sum(len(part.body) for part in package.parts)

    async def atropos() -> int:
        session = Recording()
        BaseEnv._post_json_with_compression(None, session, "http://unused", columns)
        return session.size

    print(f"{rows} rows of {tokens:,} tokens with per-token advantages, {repeats} repeats")
    for name, work in (("turnwise", ours), ("BaseEnv", atropos)):
        results = [await measured(work) for _ in range(repeats)]
        took, stall, size = map(statistics.median, zip(*results, strict=True))
        print(
            f"{name:9} {took * 1000:7.0f} ms to serialise and compress · longest stall of the loop "
            f"{stall * 1000:6.1f} ms (medians) · {size / 1e6:.2f} MB"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=16_000)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    asyncio.run(main(given.rows, given.tokens, given.repeats))
