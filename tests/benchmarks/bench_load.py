"""Time, table and peak memory of `turnwise.load`, on a large record.

    python -m tests.benchmarks.bench_load [--megabytes 500]

The record is that of `bench_export`. Each kind of rows is loaded in a process of its own, whose largest
resident set the kernel tells. Everything is removed afterwards.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import get_args

from environments.tables.group_rows import Per
from tests.benchmarks.bench_export import lines, write

LOAD = "import sys, turnwise; turnwise.load(sys.argv[1], per=sys.argv[2], cache_dir=sys.argv[3])"


def measure(record: Path, per: str) -> None:
    with tempfile.TemporaryDirectory(dir=record.parent) as cache:
        command = [sys.executable, "-c", LOAD, str(record), per, cache]
        started = time.perf_counter()
        _, status, used = os.wait4(os.spawnv(os.P_NOWAIT, sys.executable, command), 0)
        took = time.perf_counter() - started
        if status:
            raise SystemExit(f"{per} ended with {status}")
        (table,) = Path(cache).iterdir()
        read, written = record.stat().st_size / 1e6, table.stat().st_size / 1e6
    print(
        f"| {per} | {read:,.0f} MB | {written:,.0f} MB | {read / (used.ru_utime + used.ru_stime):.0f} MB/s "
        f"| {read / took:.0f} MB/s | {used.ru_maxrss / 1024:.0f} MB |",
        flush=True,
    )


def main(megabytes: int) -> None:
    print("| rows | record | table | per CPU second | per second | peak memory |")
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record.jsonl"
        write(record, asyncio.run(lines()), megabytes)
        for per in get_args(Per):
            measure(record, per)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=500)
    main(parser.parse_args().megabytes)
