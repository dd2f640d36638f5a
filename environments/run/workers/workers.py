"""Workers as an option of a run (`OnWorkers`) and for your own loop (`Workers`)."""

import asyncio
import logging
import os
import pickle
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig, ModelServerConfig
from environments.record.group_line import decode_group
from environments.rollout.items.tasks import GroupTask
from environments.run.experiment import environment_files, origin_of
from environments.run.group_source import Finishing, source_in_process, withhold_stale
from environments.run.open_run import SourceOptions
from environments.run.progress import RolloutsInFlight
from environments.run.worker_pool import groups_at_once
from environments.run.workers.dispatch import Engine, WorkerPool
from environments.run.workers.env_spec import EnvSpec, WorkerJob, shares
from environments.run.workers.worker_process import WorkerStart
from environments.trajectory import CreditedGroup
from tools.errors import ConfigError

MOST_BYTES = 512 << 20
SANDBOXES_PER_CORE = 16
"""Sandboxes per core of a node without a `sandbox` resource."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnWorkers:
    count: int | None = None
    """`None`: one worker per core of the cluster."""
    ray: str | None = None
    """A running cluster, `auto` or HOST:PORT; `None`: start Ray on this machine."""
    variables: Sequence[str] = ()
    max_memory: int | None = None
    """Bytes of one worker's process; `None`: its share of 80 % of its machine's memory."""

    def __post_init__(self) -> None:
        if self.count is not None and self.count < 1:
            raise ConfigError(
                f"--workers {self.count}: give 1 or more; without it this process rolls out itself"
            )
        if self.count is None and self.ray is None:
            raise ConfigError("give the number of workers, --workers N, or a cluster, --ray auto")
        if self.ray is not None and "://" in self.ray:
            raise ConfigError(
                f"--ray {self.ray}: give auto or HOST:PORT, on a node of the cluster; from elsewhere use "
                f"`ray job submit -- turnwise …`"
            )
        if missing := [name for name in self.variables if name not in os.environ]:
            raise ConfigError(f"--worker-env {missing[0]}: there is no such variable here")

    @asynccontextmanager
    async def open(self, env: AgentEnv, options: SourceOptions) -> AsyncGenerator[WorkerPool]:
        """Start workers for an environment that is open here and yield them as a source of groups."""
        _refuse_live_policy(env)
        # Ray loads slowly, and only this needs it.
        from environments.run.workers.ray_workers import RayEngine, cluster_resources, connect  # noqa: PLC0415

        job = WorkerJob.of(env, options)
        # Refuse bad settings before Ray is started.
        EnvSpec.of(type(env), job)
        shares(job, self.count or 1)
        limit, some = env.config.max_concurrent_rollouts, self.count or 1
        sandboxes = max((os.cpu_count() or 1) * SANDBOXES_PER_CORE, -(-limit // some) * some)
        local = {"CPU": float(some), "sandbox": float(sandboxes)}
        async with connect(self.ray, local=local) as are_here:
            there = cluster_resources()
            count = self.count or min(int(there.get("CPU", 0)), limit)
            if not count:
                raise ConfigError("the cluster has no core yet: give the number of workers, --workers N")
            if self.count is None:
                options.say(f"{count} workers, as many as the cluster has cores")
            starts = await asyncio.to_thread(self.starts, env, job, count, are_here=are_here)
            sandboxes = -(-limit // count) if env.lifecycle.sandboxes.are_opened else 0
            resources = {"CPU": 1.0}
            if sandboxes and "sandbox" in there:
                resources["sandbox"] = float(sandboxes)
            elif sandboxes:
                resources["CPU"] = max(1.0, sandboxes / SANDBOXES_PER_CORE)
            if self.max_memory is not None:
                resources["memory"] = float(self.max_memory)
            engine = RayEngine(resources=resources, at_once=max(each.at_once for each in starts))
            async with pool_of(env, engine, starts, options).open() as pool:
                yield pool

    def starts(self, env: AgentEnv, job: WorkerJob, count: int, *, are_here: bool) -> list[WorkerStart]:
        files = None if are_here else collect_files(env)
        names = os.environ if are_here else self.variables
        return [
            WorkerStart(
                spec=pickle.dumps(EnvSpec.of(type(env), each)),
                path=sys.path,
                folder=str(Path.cwd()),
                files=files,
                variables={name: os.environ[name] for name in names},
                max_memory=self.max_memory,
                count=count,
                at_once=groups_at_once(
                    each.config.max_concurrent_rollouts,
                    each.config.eval_rollouts if each.is_evaluation else each.config.group_size,
                ),
                blocked_s=each.config.hook_block_s,
            )
            for each in shares(job, count)
        ]


def pool_of(
    env: AgentEnv, engine: Engine, starts: Sequence[WorkerStart], options: SourceOptions
) -> WorkerPool:
    is_evaluation, watch = options.evaluation, options.in_flight.watch
    pool = WorkerPool(
        env,
        engine,
        starts,
        own=source_in_process(env, watch, options.finishing, evaluation=is_evaluation),
        facts=origin_of(env, evaluation=is_evaluation).facts(),
        say=options.say,
    )
    options.in_flight.elsewhere = pool.in_flight
    return pool


def collect_files(env: AgentEnv) -> dict[str, bytes]:
    paths = set(environment_files(env).values())
    dataset = env.config.dataset_path
    if dataset is not None and os.path.isfile(dataset):  # noqa: PTH113  # may raise
        paths.add(Path(dataset).resolve())
    size = sum(each.stat().st_size for each in paths)
    if size > MOST_BYTES:
        largest = max(paths, key=lambda each: each.stat().st_size)
        raise ConfigError(
            f"the environment's files are {size >> 20:,} MB, the largest is {largest}, and at most "
            f"{MOST_BYTES >> 20} MB are sent to workers: put the data where every node finds it, and open it "
            f"by its absolute path in a hook"
        )
    return {str(each): each.read_bytes() for each in sorted(paths)}


def _refuse_live_policy(env: AgentEnv) -> None:
    if env.policy is None:
        return
    from environments.policy.server_policy import ServedPolicy  # noqa: PLC0415  # loads slowly

    if not isinstance(env.policy, ServedPolicy):
        raise ConfigError(
            f"the policy {env.policy.name!r} is an object of this process, which workers cannot have: serve "
            f"the model, and name its server (--openai.base_url, or ServerConfig(base_url=…))"
        )


class Workers:
    """Rolls groups of an environment out on workers, for your own loop or a trainer's generator.

    `async with Workers(MyEnv, config, servers, count=8) as workers: group = await
    workers.run_group(workers.env.tasks()[0])`. A program that uses Ray already gets workers on its cluster.
    """

    def __init__(
        self,
        env_cls: type[AgentEnv],
        config: AgentEnvConfig | None = None,
        servers: Sequence[ModelServerConfig] | None = None,
        *,
        count: int | None = None,
        on: OnWorkers | None = None,
    ) -> None:
        """Prepare workers; nothing is started.

        Args:
            env_cls: the class, which must be defined in a file.
            config: as for `AgentEnv`; limits such as `max_concurrent_rollouts` are shared by all workers.
            servers: as for `AgentEnv`.
            count: number of workers on this machine, or on the Ray cluster of this program.
            on: settings of the workers, instead of `count`.

        Raises:
            UsageError: if the class is incomplete or a setting cannot work.
        """
        self._on = OnWorkers(count=count) if on is None else on
        self.env = env_cls(config, servers)
        """The environment, open in this process too: its tasks and its estimator."""
        self._closing = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as closing:
            env = await closing.enter_async_context(self.env)
            options = SourceOptions(
                finishing=Finishing(fingerprint=None), say=logger.info, in_flight=RolloutsInFlight()
            )
            self._pool = await closing.enter_async_context(self._on.open(env, options))
            self._closing = closing.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._closing.__aexit__(kind, error, trace)

    async def run_group(self, task: GroupTask, size: int | None = None) -> CreditedGroup:
        """Return a group of `size` siblings (default `group_size`) with its advantages.

        A group that workers die of is returned as failed, with the cause.

        Raises:
            RunError: if no worker can be started any more.
            UsageError: if a worker has another item under this name.
        """
        done = await withhold_stale(self.env, Finishing(fingerprint=None), await self._pool.run(task, size))
        assert done.line is not None
        return await asyncio.to_thread(decode_group, done.line.content, Path("the line of a worker"), 1)
