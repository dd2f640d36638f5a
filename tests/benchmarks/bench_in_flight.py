"""Thousands of rollouts in flight through `process`, with `def` hooks, and a server that takes a second.

    python -m tests.benchmarks.bench_in_flight [--rollouts 4000] [--latency-s 1] [--calls 3]

An `AgentEnv` without a sandbox, as a user writes it, recorded, watched and shown as any run. Aims: all
finish, and the event loop stands still for at most 0.25 s of our own CPU.
"""

import argparse
import asyncio
import resource
import tempfile
import time
from pathlib import Path

from rich.console import Console

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig, ServerConfig
from environments.record.recorder import read_groups
from environments.run.process_run import process
from tests.benchmarks.bench_client import canned_server
from tools.registry import Toolset, tool


@tool
def look(path: str, lines: int = 10) -> str:
    """Look at a file.

    Args:
        path: of the file.
        lines: how many.
    """
    return f"{path}: {lines} lines\n" * 20


class InFlight(AgentEnv):
    name = "in_flight"
    sandbox = "none"
    tools = (Toolset("look", (look,)),)

    def load_items(self):
        return [{"id": str(index)} for index in range(self.config.total_steps)]

    def format_prompt(self, item):
        return f"Task {item['id']}. " + "The tests fail, find out why and repair it. " * 20

    def respond(self, item, turn, ctx):
        return None

    def compute_reward(self, item, trajectory, ctx):
        return float(ctx.seed % 2)

    async def preflight(self, notify=None):
        await self.lifecycle.check_policy()


class Heartbeat:
    """How late the event loop calls back: on the clock, and by our own CPU, whoever else is busy."""

    def __init__(self):
        self.late = []

    async def beat(self):
        while True:
            asked, cpu = time.monotonic(), time.thread_time()
            await asyncio.sleep(0.01)
            self.late.append((time.monotonic() - asked - 0.01, time.thread_time() - cpu))

    def worst(self):
        """Milliseconds, on the clock and by the CPU of the loop's thread."""
        return [1000 * max(column, default=0.0) for column in zip(*self.late, strict=True)]


async def run(url, out, options):
    config = AgentEnvConfig(
        group_size=4,
        max_concurrent_rollouts=options.rollouts,
        total_steps=options.rollouts // 4,
        rollout_timeout_s=600,
        data_path_to_save_groups=str(out),
    )
    servers = [ServerConfig(base_url=url, model_name="m", num_max_requests_at_once=options.rollouts)]
    heart = Heartbeat()
    beating = asyncio.create_task(heart.beat())
    started, cpu = time.monotonic(), time.process_time()
    code = await process(InFlight(config, servers), Console(width=120))
    wall_s, cpu_s = time.monotonic() - started, time.process_time() - cpu
    beating.cancel()
    rollouts = [each for credited in read_groups(out) for each in credited.group.trajectories]
    calls = sum(len(each.turns) for each in rollouts)
    late_ms, cpu_ms = heart.worst()
    print(f"rollouts  {len(rollouts)} of {options.rollouts} finished, {calls} calls, exit code {code}")
    print(f"wall      {wall_s:.1f} s, {1000 * cpu_s / max(1, calls):.2f} ms of CPU per call")
    print(f"late      {late_ms:.0f} ms at most, {cpu_ms:.0f} ms of it the loop's own CPU")


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
    with (
        tempfile.TemporaryDirectory() as folder,
        canned_server("--latency-s", options.latency_s, "--last", options.calls - 1, *sizes) as url,
    ):
        asyncio.run(run(url, Path(folder) / "record.jsonl", options))


if __name__ == "__main__":
    main()
