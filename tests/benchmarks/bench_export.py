"""Throughput and peak memory of `turnwise export`, in each view, on a large record.

    python -m tests.benchmarks.bench_export [--megabytes 500] [--large 2000]

The record repeats the groups of `retail` (tools, replies), plain and condensed, until it has the size. Each
export is a process of its own, whose largest resident set the kernel tells; the first view is measured once
more on the large record, to show that memory does not grow with the file. Everything is removed afterwards.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

from environments.record.group_line import encode_group
from environments.retail_env.env import RetailEnv
from environments.text_exports.text_views import TEXT_VIEWS
from environments.wire.views import VIEWS


async def lines() -> list[bytes]:
    """A line per group: three items, plain, and the same condensed."""
    made: list[bytes] = []
    for condensed in ({}, {"condenser": ["keep_last_turns"], "condenser_turns": 2}):
        config = RetailEnv.env_config_cls(group_size=4, max_items=3, **condensed)
        async with RetailEnv(config) as env:
            made += [encode_group(await env.run_group(task)) for task in env.tasks()]
    return made


def write(record: Path, groups: list[bytes], megabytes: int) -> None:
    content = b"".join(groups)
    with record.open("wb") as file:
        while file.tell() < megabytes * 1_000_000:
            file.write(content)


def measure(record: Path, view: str) -> None:
    out = record.with_suffix(".out")
    command = [sys.executable, "-m", "turnwise", "export", str(record), "--view", view, "--out", str(out)]
    started = time.perf_counter()
    _, status, used = os.wait4(os.spawnv(os.P_NOWAIT, sys.executable, command), 0)
    took = time.perf_counter() - started
    if status:
        raise SystemExit(f"{view} ended with {status}")
    read, written = record.stat().st_size / 1e6, out.stat().st_size / 1e6
    out.unlink()
    cpu = used.ru_utime + used.ru_stime
    print(
        f"| {view} | {read:,.0f} MB | {written:,.0f} MB | {read / cpu:.0f} MB/s | {read / took:.0f} MB/s "
        f"| {used.ru_maxrss / 1024:.0f} MB |",
        flush=True,
    )


def main(megabytes: int, large: int) -> None:
    groups = asyncio.run(lines())
    print(f"{len(groups)} groups, the largest of {max(map(len, groups)) / 1e6:.1f} MB")
    print("| view | record | export | per CPU second | per second | peak memory |")
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record.jsonl"
        write(record, groups, megabytes)
        for view in (*TEXT_VIEWS, *VIEWS):
            measure(record, view)
        write(record, groups, large)
        measure(record, next(iter(TEXT_VIEWS)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--large", type=int, default=2000)
    arguments = parser.parse_args()
    main(arguments.megabytes, arguments.large)
