"""Thousands of rollouts in flight in one process, against a server that takes a second for each call.

    python -m tests.benchmarks.bench_in_flight [--rollouts 4000] [--latency-s 1] [--calls 3]

An `AgentEnv` as a user writes it, with a real toolset; only its sandbox is a double that does nothing. Aims:
all finish, at most 1.5 ms of CPU per call, the event loop at most 250 ms late after the ramp, at most 100 kB
of memory per rollout beside its tokens.
"""

import argparse
import asyncio
import gc
import resource
import time
from contextlib import asynccontextmanager
from pathlib import Path

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig, ServerConfig
from tests.benchmarks.bench_client import canned_server
from tools.registry import Toolset, tool
from tools.sandbox.base import Sandbox, SandboxLimits, SandboxRecord


@tool
async def look(sandbox: Sandbox, path: str, lines: int = 10) -> str:
    """Look at a file.

    Args:
        path: of the file.
        lines: how many.
    """
    return f"{path}: {lines} lines\n" * 20


class NoSandbox:
    """Nothing happens in it."""

    def __init__(self):
        self.record = SandboxRecord(backend="none", tier="-", limits=SandboxLimits(), enforced=())


@asynccontextmanager
async def no_sandbox():
    yield NoSandbox()


class InFlight(AgentEnv):
    name = "in_flight"
    tools = (Toolset("look", (look,)),)

    async def load_items(self):
        return [{"id": str(index)} for index in range(self.config.total_steps)]

    async def format_prompt(self, item):
        return f"Task {item['id']}. " + "The tests fail, find out why and repair it. " * 20

    async def compute_reward(self, item, trajectory, ctx):
        return float(int(item["id"]) % 2)

    async def preflight(self, notify=None):
        await self.check_policy()

    def open_sandbox(self):
        return no_sandbox()


class Heartbeat:
    """How late the event loop calls back: when, on the clock, and by our own CPU, whoever else is busy."""

    def __init__(self):
        self.late = []

    async def beat(self):
        while True:
            asked, cpu = time.monotonic(), time.process_time()
            await asyncio.sleep(0.01)
            self.late.append((asked, time.monotonic() - asked - 0.01, time.process_time() - cpu))

    def worst(self, after):
        """Milliseconds, on the clock and by our CPU."""
        kept = [(1000 * wall, 1000 * cpu) for asked, wall, cpu in self.late if asked > after]
        return [max(column, default=0.0) for column in zip(*kept, strict=True)]


def memory():
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) * 1024


async def run(url, rollouts, calls):
    config = AgentEnvConfig(
        group_size=4,
        max_concurrent_rollouts=rollouts,
        total_steps=rollouts // 4,
        rollout_timeout_s=600,
    )
    servers = [ServerConfig(base_url=url, model_name="m", num_max_requests_at_once=rollouts)]
    async with InFlight(config, servers) as env:
        heart = Heartbeat()
        beating = asyncio.create_task(heart.beat())
        tasks = env.tasks()
        gc.collect()
        before, cpu, started = memory(), time.process_time(), time.monotonic()
        most = before

        async def watch():
            nonlocal most
            while True:
                most = max(most, memory())
                await asyncio.sleep(0.2)

        watching = asyncio.create_task(watch())
        groups = await asyncio.gather(*(env.run_group(task) for task in tasks))
        wall, cpu = time.monotonic() - started, time.process_time() - cpu
        watching.cancel()
        beating.cancel()
    trajectories = [t for credited in groups for t in credited.group.trajectories]
    made = sum(len(t.turns) for t in trajectories)
    first = max(t.turns[0].model_s for t in trajectories)
    rows = [row for t in trajectories for row in t.rows]
    sampled = sum(turn.span.end - turn.span.start for t in trajectories for turn in t.turns)
    # As Python holds them: an id is an object and two references, a logprob that was sampled an object.
    tokens = 48 * sum(len(row.token_ids) for row in rows) + 24 * sampled
    print(f"rollouts       {len(trajectories)} of {rollouts} finished, {made} calls of {rollouts * calls}")
    print(f"wall           {wall:.1f} s, the slowest first call took {first:.1f} s")
    print(f"CPU            {1000 * cpu / max(1, made):.2f} ms per call")
    for since, after in (("the start", 0), ("the last first reply", first)):
        wall, cpu = heart.worst(started + after)
        print(f"late           {wall:.0f} ms at most since {since}, {cpu:.0f} ms of it our own CPU")
    each, of_tokens = ((most - before) / rollouts / 1000, tokens / rollouts / 1000)
    print(f"memory         {each:.0f} kB per rollout, {of_tokens:.0f} kB of it tokens")


def main() -> None:
    """Run once and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rollouts", type=int, default=4000)
    parser.add_argument("--latency-s", type=float, default=1.0)
    parser.add_argument("--calls", type=int, default=3)
    parser.add_argument("--prompt-tokens", type=int, default=600)
    parser.add_argument("--sampled-tokens", type=int, default=64)
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    sizes = ("--prompt-tokens", options.prompt_tokens, "--sampled-tokens", options.sampled_tokens)
    with canned_server("--latency-s", options.latency_s, "--last", options.calls - 1, *sizes) as url:
        asyncio.run(run(url, options.rollouts, options.calls))


if __name__ == "__main__":
    main()
