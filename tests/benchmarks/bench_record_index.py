"""How long a resume takes until it knows what a large record holds, with its index and without.

    python -m tests.benchmarks.bench_record_index [--megabytes 2000]

The record repeats groups of `retail`, each in an epoch of its own. Measured is `Recorder`, opened and closed,
in a process of its own: without an index (every line is parsed, and the index made), with the index, after a
`kill -9` between a group and its entry (the record is as it was not when the index was written, so that every
line is compared by its checksum), and one group read at its place. Everything is removed afterwards.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path

from environments.record.group_line import encode_group
from environments.record.index_file import index_path
from environments.retail_env.env import RetailEnv

OPEN = """
import sys, time
from pathlib import Path
from environments.record.recorder import Recorder
started = time.perf_counter()
with Recorder(Path(sys.argv[1])) as recorder:
    finished = len(recorder.finished)
print(time.perf_counter() - started, finished)
"""
READ_ONE = """
import sys, time
from pathlib import Path
from environments.record.entries import read_entries, read_group_at
started = time.perf_counter()
entries = read_entries(Path(sys.argv[1]))
read_group_at(Path(sys.argv[1]), entries[len(entries) // 2])
print(time.perf_counter() - started, len(entries))
"""


async def lines() -> list[bytes]:
    async with RetailEnv(RetailEnv.env_config_cls(group_size=4, max_items=3)) as env:
        return [encode_group(await env.run_group(task)) for task in env.tasks()]


def write(record: Path, groups: list[bytes], megabytes: int) -> int:
    count = 0
    with record.open("wb") as file:
        while file.tell() < megabytes * 1_000_000:
            line = groups[count % len(groups)]
            file.write(line.replace(b'"epoch":0', b'"epoch":%d' % count, 1))
            count += 1
    return count


def seconds(script: str, record: Path, groups: int) -> float:
    done = subprocess.run([sys.executable, "-c", script, str(record)], capture_output=True, check=True)
    took, found = done.stdout.split()
    if int(found) != groups:
        raise SystemExit(f"{int(found)} of {groups} groups found")
    return float(took)


def main(megabytes: int) -> None:
    groups = asyncio.run(lines())
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record.jsonl"
        count = write(record, groups, megabytes)
        without = seconds(OPEN, record, count)
        with_index = [seconds(OPEN, record, count) for _ in range(3)]
        with record.open("ab") as file:
            file.write(groups[0].replace(b'"epoch":0', b'"epoch":%d' % count, 1))
        behind = seconds(OPEN, record, count + 1)
        one = seconds(READ_ONE, record, count + 1)
        index = index_path(record).stat().st_size
    print(f"{count:,} groups, {megabytes:,} MB; index of {index / 1e6:.1f} MB")
    for name, took in (
        ("without an index, which is made", without),
        ("with the index, best of 3", min(with_index)),
        ("with the index, worst of 3", max(with_index)),
        ("index behind by a group", behind),
        ("one group in the middle", one),
    ):
        print(f"| {name} | {took:.2f} s | {without / took:.0f}x |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=2000)
    main(parser.parse_args().megabytes)
