"""Workers without Ray: their supervisors are in this process."""

import io
from contextlib import asynccontextmanager

import orjson
from rich.console import Console

from environments.record.recorder import read_groups
from environments.run.group_source import Finishing
from environments.run.open_run import SourceOptions
from environments.run.process_run import process
from environments.run.progress import RolloutsInFlight
from environments.run.workers.env_spec import WorkerJob
from environments.run.workers.worker_process import WorkerProcess
from environments.run.workers.workers import OnWorkers, pool_of

NO_PART_OF_A_ROLLOUT = {"group_id", "origin", "crc32", "profile", "sandbox", "clock"}


class Supervisors:
    """An engine that keeps its workers here."""

    def __init__(self):
        self.workers = []

    async def start(self, start):
        self.workers.append(WorkerProcess(start))
        return self.workers[-1]

    async def check(self):
        pass


def on_supervisors(count=2, *, memory=None, supervisors=None):
    """What `process`, `evaluate` and `serve` take as their source of groups."""

    @asynccontextmanager
    async def opened(env, options):
        on, job = OnWorkers(count=count, max_memory=memory), WorkerJob.of(env, options)
        starts = on.starts(env, job, count, are_here=True)
        engine = Supervisors() if supervisors is None else supervisors
        async with pool_of(env, engine, starts, options).open() as pool:
            yield pool

    return opened


@asynccontextmanager
async def working(env, count=2, *, said=None, **options):
    """A pool of workers for an environment, both open."""
    say = print if said is None else said.append
    async with env.opened():
        wanted = SourceOptions(finishing=Finishing(fingerprint=None), say=say, in_flight=RolloutsInFlight())
        async with on_supervisors(count, **options)(env, wanted) as pool:
            yield pool


async def processed(env, **options):
    """The exit code of a run, and what it showed."""
    console = Console(file=io.StringIO(), width=200)
    code = await process(env, console, **options)
    return code, console.file.getvalue()


def groups_in(path):
    """The groups of a record, by item: status and, of those that failed, why."""
    return {
        each.group.item_id: (each.status, each.group.failures[-1].error if each.status == "failed" else "")
        for each in read_groups(path)
    }


def content_of(path):
    """What a record says of rollouts, whoever rolled them out, in whichever order and time."""
    return sorted(
        orjson.dumps(_timeless(orjson.loads(line)), option=orjson.OPT_SORT_KEYS)
        for line in path.read_bytes().splitlines()
    )


def _timeless(value):
    if isinstance(value, dict):
        kept = {name: each for name, each in value.items() if name not in NO_PART_OF_A_ROLLOUT}
        return {name: _timeless(each) for name, each in kept.items() if not name.endswith("_s")}
    return [_timeless(each) for each in value] if isinstance(value, list) else value
