"""What `--env.profile` costs: CPU of the same rollouts with it and without, by turns in one run.

    python -m tests.benchmarks.bench_profile [--rounds 9]

A rollout here is nothing but hooks, tools and a scripted model that take no time, so that the share is the
largest that any environment sees.
"""

import argparse
import asyncio
import statistics
import time

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig
from environments.policy.scripted import Choice, call, say
from environments.turn_level_reward import TurnLevelRewardMixin
from tools.registry import Toolset, tool

TURNS = 8


@tool
async def look(path: str) -> str:
    """Look at a file.

    Args:
        path: of the file.
    """
    return path


class Hooks(TurnLevelRewardMixin, AgentEnv):
    """Hooks and a tool that give a value at once."""

    name = "hooks"
    sandbox = "none"
    tools = (Toolset("look", (look,)),)

    async def load_items(self):
        return [{"id": str(index)} for index in range(16)]

    async def format_prompt(self, item):
        return "Look."

    async def score_turn(self, item, turn, ctx):
        return 1.0

    async def scripted_choices(self, item, messages, tools, skill):
        turn = sum(message.role == "assistant" for message in messages)
        return [
            Choice(probability=1.0, message=call("look", {"path": "a"}) if turn < TURNS - 1 else say("no"))
        ]


async def cpu_of(*, profile):
    async with Hooks(AgentEnvConfig(profile=profile, group_size=4)) as env:
        started = time.process_time()
        for task in env.tasks():
            await env.run_group(task)
        return time.process_time() - started


def main() -> None:
    """Run and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    asyncio.run(cpu_of(profile=True))
    ratios, seconds = [], []
    for _ in range(rounds):
        without = asyncio.run(cpu_of(profile=False))
        ratios.append(asyncio.run(cpu_of(profile=True)) / without)
        seconds.append(without)
    turns = 16 * 4 * TURNS
    print(f"CPU of a turn without: {1000 * statistics.median(seconds) / turns:.2f} ms")
    print(f"with / without: {statistics.median(ratios):.3f} (from {min(ratios):.3f} to {max(ratios):.3f})")


if __name__ == "__main__":
    main()
