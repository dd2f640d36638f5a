"""What `--workers` costs: CPU of a start and of a group against one process, and memory.

    python -m tests.benchmarks.bench_workers [--pairs 3] [--groups 120] [--workers 2]

The same groups in one process and by workers, one after the other, each run a process of its own. CPU of
workers, supervisors and Ray counts, of groups from when all workers are open. Memory is PSS: what is shared
counts once.
"""

import argparse
import asyncio
import io
import json
import os
import subprocess
import sys
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import fmean, median

from rich.console import Console

from environments.config import AgentEnvConfig, ServerConfig
from environments.run.open_run import in_this_process
from environments.run.process_run import process
from tests.benchmarks.bench_client import canned_server
from tests.benchmarks.bench_in_flight import InFlight
from tools.sandbox.conformance.hosts import descendants, pss_bytes

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def costs():
    """CPU seconds, and PSS in MB, of all that this process started and of itself, by kind."""
    found = {}
    for pid in (os.getpid(), *descendants(os.getpid())):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            own = "worker" if b"rollout_worker" in command else "ray"
            kind = "driver" if pid == os.getpid() else own
            found.setdefault(kind, []).append(
                ((int(fields[11]) + int(fields[12])) * TICK_S, pss_bytes(pid) / 1e6)
            )
        except OSError:
            continue
    return found


def cpu_s(found):
    return sum(cpu for each in found.values() for cpu, _ in each)


class Watched:
    """A source of groups that notes what all processes used when it is open, and at the end."""

    def __init__(self, source, options):
        self._source, self._options, self._left = source, options, options.groups
        self.at_once, self.figures = source.at_once, {}

    async def first(self, task):
        group = await self._source.first(task)
        if self._options.workers:
            while not all(each.is_open for each in self._source._slots):  # noqa: ASYNC110  # nobody else waits
                await asyncio.sleep(0.1)
            await asyncio.sleep(1)
        self.figures["start"] = cpu_s(costs())
        return group

    async def run(self, task, size=None, *, max_row_tokens=None):
        done = await self._source.run(task, size, max_row_tokens=max_row_tokens)
        self._left -= 1
        if not self._left:
            found = costs()
            self.figures["group"] = (cpu_s(found) - self.figures["start"]) / self._options.groups
            self.figures["memory"] = {kind: [pss for _, pss in each] for kind, each in found.items()}
        return done


def one_run(options):
    """Run the environment, and return the figures of its processes."""
    source, kept = in_this_process, []
    if options.workers:
        from environments.run.workers.workers import OnWorkers

        source = OnWorkers(count=options.workers).open

    @asynccontextmanager
    async def opened(env, wanted):
        async with source(env, wanted) as inner:
            kept.append(Watched(inner, options))
            yield kept[0]

    config = AgentEnvConfig(
        group_size=8,
        max_concurrent_rollouts=64,
        total_steps=options.groups,
        data_path_to_save_groups=str(options.out),
        shuffle=False,
    )
    env = InFlight(config, [ServerConfig(base_url=options.url, model_name="m")])
    console = Console(file=io.StringIO())
    code = asyncio.run(process(env, console, open_source=opened))
    assert code == 0, console.file.getvalue()
    return kept[0].figures


def run_alone(*arguments):
    """Return the figures of a run in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.bench_workers", *map(str, arguments)]
    with tempfile.TemporaryDirectory() as folder:
        out = ["--out", str(Path(folder) / "record.jsonl")]
        done = subprocess.run([*command, *out], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def show_pairs(options):
    """One process and workers, by turns."""
    runs = {0: [], options.workers: []}
    with canned_server("--last", options.calls - 1, "--prompt-tokens", 50, "--sampled-tokens", 16) as url:
        for _ in range(options.pairs):
            for workers, kept in runs.items():
                kept.append(run_alone("--workers", workers, "--groups", options.groups, "--url", url))
    ratio = median(more["group"] / one["group"] for one, more in zip(*runs.values(), strict=True))
    for workers, kept in runs.items():
        print(f"{f'{workers} workers' if workers else '1 process'}")
        print(f"  start      {median(run['start'] for run in kept):.1f} s of CPU")
        print(f"  group      {1000 * median(run['group'] for run in kept):.1f} ms of CPU")
        for kind in kept[0]["memory"]:
            each = [pss for run in kept for pss in run["memory"][kind]]
            print(f"  {kind:10} {fmean(each):.0f} MB each, {sum(each) / len(kept):.0f} MB in all")
    print(f"a group by workers costs {ratio:.2f} of one process")


def main() -> None:
    """Run once and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--groups", type=int, default=120)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--calls", type=int, default=10)
    parser.add_argument("--url", help="of one run, for the pairs")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.url:
        print(json.dumps(one_run(options)))
    else:
        show_pairs(options)


if __name__ == "__main__":
    main()
