"""How long a resume takes until it knows what a large record holds.

    python -m tests.benchmarks.bench_record_opening [--megabytes 2000]

The record repeats groups of `retail`, each in an epoch of its own. Measured is `Recorder`, opened and closed,
in a process of its own: as it is, and with every line parsed whole. Everything is removed afterwards.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path

from environments.record.group_line import encode_group
from environments.retail_env.env import RetailEnv

OPEN = """
import resource, sys
from pathlib import Path
from time import perf_counter, process_time
from environments.record import recorder
if sys.argv[2] == "whole":
    recorder.PARSED_WHOLE = 1 << 60
wall, cpu = perf_counter(), process_time()
with recorder.Recorder(Path(sys.argv[1])) as opened:
    finished = len(opened.finished)
print(perf_counter() - wall, process_time() - cpu, finished)
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


def main(megabytes: int) -> None:
    groups = asyncio.run(lines())
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record.jsonl"
        count = write(record, groups, megabytes)
        print(f"{count:,} groups, {megabytes:,} MB")
        for how in ("heads", "whole"):
            command = [sys.executable, "-c", OPEN, str(record), how]
            done = subprocess.run(command, capture_output=True, check=True)
            wall, cpu, found = map(float, done.stdout.split())
            if found != count:
                raise SystemExit(f"{found:.0f} of {count} groups found")
            print(f"| {how} | {wall:.1f} s | {cpu:.1f} s of CPU |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=2000)
    main(parser.parse_args().megabytes)
