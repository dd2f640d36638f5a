"""What `--workers` costs: CPU of workers against one process, start and memory.

    python -m tests.benchmarks.bench_workers [--pairs 3] [--groups 120] [--workers 2]

The same groups in one process and by workers, one after the other, each run a process of its own, with the
CPU of workers and their supervisors from when all are open. Then what it takes until the first group, and
memory (PSS: what is shared counts once).
"""

import argparse
import asyncio
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import fmean, median

from rich.console import Console

from environments.config import AgentEnvConfig, ServerConfig
from environments.run.open_run import in_this_process
from environments.run.process_run import process
from tests.benchmarks.bench_client import canned_server
from tests.benchmarks.bench_in_flight import InFlight
from tools.sandbox.conformance.hosts import pss_bytes

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


async def all_open(pool):
    while not all(each.is_open for each in pool._slots):  # noqa: ASYNC110  # nobody else waits for that
        await asyncio.sleep(0.1)
    await asyncio.sleep(1)


def processes():
    """All that this process started, by kind: CPU seconds and PSS in MB of each."""
    parents = {}
    for each in Path("/proc").iterdir():
        if each.name.isdecimal():
            try:
                parents[int(each.name)] = int((each / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = {}
    for pid in parents:
        line, ancestor = [pid], pid
        while (ancestor := parents.get(ancestor, 0)) > 1:
            line.append(ancestor)
        if os.getpid() in line:
            try:
                found[pid] = (_kind(line), *_costs(pid))
            except OSError:
                continue
    return found


def _kind(line):
    names = [Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode() for pid in line[:2]]
    if line[0] == os.getpid():
        return "driver"
    if "ray::" in names[0] and "Agent" not in names[0]:
        return "supervisor" if "Worker" in names[0] else "idle"
    if "rollout_worker" in names[0]:
        return "worker"
    return "daemons"


def _costs(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S, pss_bytes(pid) / 1e6


def cpu_by_kind(found):
    """Seconds."""
    sums = {}
    for kind, cpu_s, _ in found.values():
        sums[kind] = sums.get(kind, 0.0) + cpu_s
    sums["driver"] = time.process_time()
    return sums


class Watched:
    """Source that notes what all processes used when it is open, at its first group and at the end."""

    def __init__(self, source, workers, begun, groups):
        self._source, self._workers, self._begun, self._groups = source, workers, begun, groups
        self.at_once, self.figures = source.at_once, {}
        self._done = 0

    async def first(self, task):
        self.figures["start_wall_s"] = time.monotonic() - self._begun
        group = await self._source.first(task)
        self.figures["first_wall_s"] = time.monotonic() - self._begun
        self.figures["first"] = cpu_by_kind(processes())
        if self._workers:
            await all_open(self._source)
        self._before, self._wall = cpu_by_kind(processes()), time.monotonic()
        self.figures["open_wall_s"] = self._wall - self._begun
        self.figures["open"] = self._before
        return group

    async def run(self, task, size=None, *, max_row_tokens=None):
        done = await self._source.run(task, size, max_row_tokens=max_row_tokens)
        self._done += 1
        if self._done == self._groups:
            found = processes()
            after = cpu_by_kind(found)
            self.figures["spent"] = {kind: after[kind] - self._before.get(kind, 0.0) for kind in after}
            self.figures["wall_s"] = time.monotonic() - self._wall
            self.figures["line"] = len(done.line.content)
            self.figures["memory"] = [(kind, pss) for kind, _, pss in found.values()]
        return done


def one_run(options, begun):
    """A run of the toy environment: the figures of its processes."""
    if options.workers:
        from environments.run.workers.workers import OnWorkers

        source = OnWorkers(count=options.workers).open
    else:
        source = in_this_process
    kept = []

    @asynccontextmanager
    async def opened(env, wanted):
        async with source(env, wanted) as inner:
            kept.append(Watched(inner, options.workers, begun, options.groups))
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


def alone(*arguments):
    """The figures of a run in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.bench_workers", *map(str, arguments)]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [*command, "--out", str(Path(folder) / "record.jsonl")], stdout=subprocess.PIPE, check=True
        )
    return json.loads(done.stdout.splitlines()[-1])


def pairs(options):
    """One process and workers, by turns."""
    ratios, runs = [], {0: [], options.workers: []}
    with canned_server("--last", options.calls - 1, "--prompt-tokens", 50, "--sampled-tokens", 16) as url:
        for _ in range(options.pairs):
            for workers, kept in runs.items():
                kept.append(alone("--workers", workers, "--groups", options.groups, "--url", url))
            one, more = (kept[-1]["spent"] for kept in runs.values())
            ratios.append((more["worker"] + more["supervisor"]) / one["driver"])
            print(f"pair      {ratios[-1]:.2f} times the CPU of one process", flush=True)
    print(f"ratio     {median(ratios):.2f}")
    print(f"line      {runs[0][0]['line'] / 1000:.0f} kB")
    for workers, kept in runs.items():
        who = f"{workers} workers" if workers else "1 process"
        print(f"{who}: wall {median(run['wall_s'] for run in kept):.1f} s of {options.groups} groups")
        for name in ("start", "first", "open"):
            print(f"  wall until {name:6} {median(run[f'{name}_wall_s'] for run in kept):5.1f} s")
        print("             CPU s first  CPU s open  ms a group   each PSS  number")
        for kind in kept[0]["spent"]:
            first, opened = (median(run[name].get(kind, 0.0) for run in kept) for name in ("first", "open"))
            spent = median(1000 * run["spent"][kind] / options.groups for run in kept)
            memory = [pss for run in kept for name, pss in run["memory"] if name == kind]
            print(
                f"  {kind:10} {first:11.2f} {opened:11.2f} {spent:11.2f} {fmean(memory):7.0f} MB "
                f"{len(memory) / len(kept):7.1f}"
            )


def main() -> None:
    """Run once and print the figures."""
    begun = time.monotonic() - time.process_time()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--groups", type=int, default=120)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--calls", type=int, default=10)
    parser.add_argument("--url", help="of one run, for the pairs")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.url:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        print(json.dumps(one_run(options, begun)))
    else:
        pairs(options)


if __name__ == "__main__":
    main()
