"""How fast `recredit` and `export` go through a large record, on one core and on all, beside a plain loop.

    python -m tests.benchmarks.bench_record_passes [--megabytes 500]

The record repeats the groups of `retail`, plain and condensed. The plain loop reads every group whole and
writes it again, which is what `recredit` did. Each command is a process of its own, once held to one core.
Per second of CPU, its workers' included, says what idle cores give where this machine has other work.
Everything is removed afterwards.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from environments.text_exports.text_views import TEXT_VIEWS
from environments.wire.views import VIEWS
from tests.benchmarks.bench_export import lines, write

PLAIN = """
import sys
from pathlib import Path
from environments.record.group_line import encode_group
from environments.record.recorder import read_groups
with open(sys.argv[2], "wb") as out:
    for group in read_groups(Path(sys.argv[1])):
        out.write(encode_group(group))
"""


def measure(name: str, command: list[str], record: Path, out: Path, cores: set[int]) -> float:
    """Print a row; seconds."""
    every = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)  # the process gets what this one has
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.sched_setaffinity(0, every)
    _, status, used = os.wait4(process.pid, 0)
    took = time.perf_counter() - started
    if status:
        raise SystemExit(f"{name} ended with {status}")
    out.unlink()
    megabytes, cpu = record.stat().st_size / 1e6, used.ru_utime + used.ru_stime
    print(
        f"| {name} | {len(cores)} | {megabytes / took:.0f} MB/s | {megabytes / cpu:.0f} MB/s "
        f"| {used.ru_maxrss / 1024:.0f} MB |",
        flush=True,
    )
    return megabytes / cpu


def main(megabytes: int) -> None:
    every = os.sched_getaffinity(0)
    groups = asyncio.run(lines())
    print("| command | cores | per second | per CPU second | largest process |")
    with tempfile.TemporaryDirectory() as folder:
        record, out = Path(folder) / "record.jsonl", Path(folder) / "out.jsonl"
        write(record, groups, megabytes)
        files = [str(record), "--out", str(out)]
        plain = measure("plain loop", ["-c", PLAIN, str(record), str(out)], record, out, {min(every)})
        recredit = ["-m", "turnwise", "recredit", *files, "--estimator", "turn_return"]
        for cores in ({min(every)}, every):
            speed = measure("recredit", recredit, record, out, cores)
            print(f"{speed / plain:.1f} times as much per CPU second as the plain loop")
        for view in (*TEXT_VIEWS, *VIEWS):
            measure(
                f"export {view}", ["-m", "turnwise", "export", *files, "--view", view], record, out, every
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=500)
    main(parser.parse_args().megabytes)
