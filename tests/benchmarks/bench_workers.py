"""What `--workers` costs: CPU of the driver a group, CPU of workers against one process, start and memory.

    python -m tests.benchmarks.bench_workers driver [--slots 4 16 64] [--actors 8] [--lines small large]
    python -m tests.benchmarks.bench_workers pairs [--pairs 3] [--groups 120] [--workers 2]
    python -m tests.benchmarks.bench_workers waiting [--groups 500 1000 2000 4000] [--slots 64]

`driver`: actors answer with a group that is ready, and all the rest is as in a run: tasks, beats, a record
with `fsync`, a progress line. More slots than actors share these. Aims: at most 4 ms a group of 250 kB, and
at least 80 MB/s of lines of 5 MB, whatever the number of slots.

`pairs`: the same groups in one process and by workers, one after the other, each run a process of its own,
with the CPU of workers and their supervisors from when all are open. Aim: at most 1.25 times one process.
Then what it takes until the first group, and memory (PSS: what is shared counts once).

`waiting`: groups that wait for the one slot that is open, without Ray. Aim: a group costs the same however
many wait.
"""

import argparse
import asyncio
import io
import itertools
import json
import os
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median

from rich.console import Console

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig, ServerConfig
from environments.record.recorder import GroupLine
from environments.rollout.items.tasks import GroupTask
from environments.run.experiment import origin_of
from environments.run.group_source import FinishedGroup, finished, source_in_process
from environments.run.open_run import in_this_process
from environments.run.process_run import process
from environments.run.workers.dispatch import WorkerPool
from environments.run.workers.worker_process import Answer, Beat, Cancelled, Opened, WorkerStart, read_value
from tests.benchmarks.bench_client import canned_server
from tests.benchmarks.bench_in_flight import InFlight

LINES = {"small": (10, 1), "large": (10, 1050)}
"""Turns and sampled tokens of each, in groups of 8: 260 kB and 5 MB."""
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class ReadyEnv(AgentEnv):
    """Plans groups that nobody rolls out."""

    name = "ready"

    def load_items(self):
        return [{"id": str(index), "question": "why?" * 50} for index in range(self.config.total_steps)]

    def format_prompt(self, item):
        return item["question"]

    def compute_reward(self, item, trajectory, ctx):
        return 0.0

    async def preflight(self, notify=None):
        pass


class ReadyWorker:
    """In the place of a `WorkerProcess`: whatever it is asked for is there already."""

    def __init__(self, start):
        self._opened, self._answer = pickle.loads(start.spec)

    async def open(self):
        return pickle.dumps(self._opened)

    async def ask(self, request, number):
        del number
        asked, done = read_value(request), self._answer.value
        if asked.what == "first":
            value = self._first(done)
        else:
            value = replace(done, line=replace(done.line, item_id=asked.item_id, epoch=asked.epoch))
        await asyncio.sleep(0)
        return pickle.dumps(replace(self._answer, value=value), pickle.HIGHEST_PROTOCOL)

    def _first(self, done):
        from environments.record.group_line import decode_group

        group = decode_group(done.line.content, Path("a line"), 1, rows=False).group
        return replace(group, trajectories=group.trajectories[:1])

    async def cancel(self, number):
        pass

    async def beat(self):
        return Beat()

    async def close(self, limit_s):
        del limit_s
        return pickle.dumps(Cancelled())

    async def kill(self, why):
        pass


def ready_engine(actors):
    """Starts at most so many actors; those who ask for more share them."""
    from environments.run.workers import ray_workers

    class Engine(ray_workers.RayEngine):
        supervisor = ReadyWorker

        def __init__(self):
            super().__init__(asked={"CPU": 1.0}, at_once=500)
            self._starting, self._numbers = [], itertools.count()

        async def start(self, start):
            if len(self._starting) < actors:
                self._starting.append(asyncio.ensure_future(super().start(start)))
            return await self._starting[next(self._numbers) % actors]

    return Engine()


async def all_open(pool):
    while not all(each.is_open for each in pool._slots):  # noqa: ASYNC110  # nobody else waits for that
        await asyncio.sleep(0.1)
    await asyncio.sleep(1)


class Driven:
    """Source that notes what CPU was used when the first rollout is there, and until its end."""

    def __init__(self, pool, idle_s):
        self._pool, self._idle_s, self.at_once = pool, idle_s, pool.at_once
        self.run = pool.run

    async def first(self, task):
        group = await self._pool.first(task)
        await all_open(self._pool)
        before = time.process_time()
        await asyncio.sleep(self._idle_s)
        self.idle = (time.process_time() - before) / self._idle_s
        self.begun, self.begun_wall, self.begun_thread = (
            time.process_time(),
            time.monotonic(),
            time.thread_time(),
        )
        return group


def worker_start(spec, *, count, at_once):
    return WorkerStart(
        spec=spec,
        path=(),
        folder="",
        files=None,
        variables={},
        max_memory=None,
        count=count,
        at_once=at_once,
        blocked_s=1.0,
    )


def ready_source(options, figures):
    @asynccontextmanager
    async def opened(env, wanted):
        from environments.run.workers.ray_workers import connected
        from tests.benchmarks.bench_record import sampled_group  # a file that workers of `pairs` do not load

        done = finished(sampled_group(8, *LINES[options.line]), wanted.finishing)
        facts = Opened(facts=origin_of(env, evaluation=False).facts(), packages={})
        spec = pickle.dumps((facts, Answer(value=done, met=(), read=(), written=())))
        start = worker_start(spec, count=options.slots, at_once=options.at_once)
        actors = min(options.slots, options.actors)
        async with connected(None, local={"CPU": float(actors)}):
            own = source_in_process(env, wanted.in_flight.watch, wanted.finishing)
            starts = [start] * options.slots
            pool = WorkerPool(env, ready_engine(actors), starts, own=own, facts=facts.facts, say=wanted.say)
            async with pool.opened():
                driven = Driven(pool, options.idle_s)
                yield driven
                cpu_s, wall_s = time.process_time() - driven.begun, time.monotonic() - driven.begun_wall
        size = len(done.line.content)
        figures.update(
            ms=1000 * cpu_s / options.groups,
            loop_ms=1000 * (time.thread_time() - driven.begun_thread) / options.groups,
            mb_per_s=size * options.groups / cpu_s / 1e6,
            size=size,
            idle=driven.idle,
            wall_s=wall_s,
        )

    return opened


def ready_run(options):
    """One run with ready groups: the figures of its driver."""
    figures = {}
    config = AgentEnvConfig(
        group_size=8, total_steps=options.groups, data_path_to_save_groups=str(options.out), shuffle=False
    )
    env = ReadyEnv(config, [ServerConfig(base_url="http://127.0.0.1:9/v1", model_name="m")])
    console = Console(file=io.StringIO())
    code = asyncio.run(process(env, console, open_source=ready_source(options, figures)))
    assert code == 0, console.file.getvalue()
    return figures


def processes():
    """All that this process started, by kind: CPU seconds, and RSS and PSS in MB, of each."""
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
    memory = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, value = line.split(":")
        memory[name] = int(value.split()[0]) / 1000
    return (int(fields[11]) + int(fields[12])) * TICK_S, memory["Rss"], memory["Pss"]


def cpu_by_kind(found):
    """Seconds."""
    sums = {}
    for kind, cpu_s, _, _ in found.values():
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
            self.figures["memory"] = [(kind, rss, pss) for kind, _, rss, pss in found.values()]
        return done


def one_run(options, begun):
    """A run of the toy environment: the figures of its processes."""
    if options.workers:
        from environments.run.workers.workers import OnWorkers

        source = OnWorkers(count=options.workers).opened
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


class OneOpens:
    """An engine without Ray of which one worker opens, and answers at once."""

    def __init__(self):
        self._is_first = True

    async def start(self, start):
        if not self._is_first:
            await asyncio.Event().wait()
        self._is_first = False
        return ReadyWorker(start)

    async def check(self):
        pass


async def waiting_ms(groups, slots):
    """CPU of each of so many groups that all wait for one worker."""
    config = AgentEnvConfig(total_steps=groups)
    env = ReadyEnv(config, [ServerConfig(base_url="http://127.0.0.1:9/v1", model_name="m")])
    facts = Opened(facts={}, packages={})
    done = FinishedGroup(
        line=GroupLine(content=b"", fingerprint="f", item_id="", epoch=0, status="ok"), note=None
    )
    spec = pickle.dumps((facts, Answer(value=done, met=(), read=(), written=())))
    starts = [worker_start(spec, count=slots, at_once=1)] * slots
    async with WorkerPool(env, OneOpens(), starts, own=None, facts={}, say=print).opened() as pool:
        tasks = [GroupTask(item={}, item_id=str(number), epoch=0) for number in range(groups)]
        begun = time.process_time()
        await asyncio.gather(*map(pool.run, tasks))
        return 1000 * (time.process_time() - begun) / groups


def waiting(options):
    """The table of groups that wait."""
    print("groups  ms a group")
    for groups in options.groups:
        costs = [asyncio.run(waiting_ms(groups, options.slots)) for _ in range(options.repeats)]
        print(f"{groups:6} {median(costs):11.2f}", flush=True)


def alone(*arguments):
    """The figures of a run in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.bench_workers", "one", *map(str, arguments)]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [*command, "--out", str(Path(folder) / "record.jsonl")], stdout=subprocess.PIPE, check=True
        )
    return json.loads(done.stdout.splitlines()[-1])


def drivers(options):
    """The table of drivers."""
    print("     line slots actors  ms a group   loop   MB/s   idle  wall s")
    for line in options.lines:
        groups = options.groups if line == "small" else max(options.groups // 8, 1)
        for slots in options.slots:
            asked = ("--line", line, "--slots", slots, "--actors", options.actors, "--groups", groups)
            asked += ("--at-once", options.at_once if line == "small" else 1, "--idle-s", options.idle_s)
            runs = [alone(*asked) for _ in range(options.repeats)]
            each = {name: median(run[name] for run in runs) for name in runs[0]}
            print(
                f"{each['size'] / 1000:6.0f} kB {slots:6} {min(slots, options.actors):6} "
                f"{each['ms']:11.2f} {each['loop_ms']:6.2f} {each['mb_per_s']:6.0f} {each['idle']:6.1%} "
                f"{each['wall_s']:7.1f}   " + " ".join(f"{run['ms']:.2f}" for run in runs),
                flush=True,
            )


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
        print("             CPU s first  CPU s open  ms a group   each RSS   each PSS  number")
        for kind in kept[0]["spent"]:
            first, opened = (median(run[name].get(kind, 0.0) for run in kept) for name in ("first", "open"))
            spent = median(1000 * run["spent"][kind] / options.groups for run in kept)
            memory = [each for run in kept for each in run["memory"] if each[0] == kind]
            rss, pss = (sum(each[slot] for each in memory) / len(memory) for slot in (1, 2))
            print(
                f"  {kind:10} {first:11.2f} {opened:11.2f} {spent:11.2f} {rss:7.0f} MB {pss:7.0f} MB "
                f"{len(memory) / len(kept):7.1f}"
            )


def main() -> None:
    """Run once and print the figures."""
    begun = time.monotonic() - time.process_time()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = parser.add_subparsers(dest="part", required=True)
    part = parts.add_parser("driver")
    part.add_argument("--slots", type=int, nargs="*", default=[4, 16, 64])
    part.add_argument("--actors", type=int, default=8)
    part.add_argument("--lines", nargs="*", default=list(LINES))
    part.add_argument("--groups", type=int, default=1200, help="an eighth of it of large lines")
    part.add_argument("--at-once", type=int, default=4, help="groups of a slot at once; one large one")
    part.add_argument("--idle-s", type=float, default=5.0)
    part.add_argument("--repeats", type=int, default=3)
    part = parts.add_parser("pairs")
    part.add_argument("--pairs", type=int, default=3)
    part.add_argument("--groups", type=int, default=120)
    part.add_argument("--workers", type=int, default=2)
    part.add_argument("--calls", type=int, default=10)
    part = parts.add_parser("waiting")
    part.add_argument("--groups", type=int, nargs="*", default=[500, 1000, 2000, 4000])
    part.add_argument("--slots", type=int, default=64)
    part.add_argument("--repeats", type=int, default=3)
    part = parts.add_parser("one", help="for the two others")
    for name in ("--slots", "--actors", "--groups", "--at-once", "--workers"):
        part.add_argument(name, type=int)
    part.add_argument("--idle-s", type=float)
    for name in ("--line", "--url"):
        part.add_argument(name)
    part.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.part == "one":
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        print(json.dumps(ready_run(options) if options.line else one_run(options, begun)))
    else:
        {"driver": drivers, "pairs": pairs, "waiting": waiting}[options.part](options)


if __name__ == "__main__":
    main()
