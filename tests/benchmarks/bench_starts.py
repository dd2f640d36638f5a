"""CPU per start of a program that imports `openai` and asks once, cold and warm, in turn in one run.

    python -m tests.benchmarks.bench_starts [--groups 4] [--siblings 4]

A figure is the CPU of all ended processes of a rollout, its guards included. The first warm group is left
out: it shows what is to be imported. Aim: at most 0.15 CPU s warm.
"""

import argparse
import asyncio
import os
import tempfile
from pathlib import Path
from statistics import median

from turnwise import AgentEnv, AgentEnvConfig, Choice, Command, say

AGENT = """
import sys, openai
messages = [{"role": "user", "content": sys.argv[1]}]
openai.OpenAI().chat.completions.create(model="m", messages=messages)
"""


class Asks(AgentEnv):
    name = "asks"
    sandbox = "none"

    def load_items(self):
        return [{"id": "one"}]

    def format_prompt(self, item):
        return "Say A."

    def compute_reward(self, item, trajectory, ctx):
        return 1.0

    def scripted_choices(self, item, messages, tools, skill):
        return [Choice(probability=1.0, message=say("A"))]


def children_s():
    times = os.times()
    return times.children_user + times.children_system


async def measure(groups, siblings):
    with tempfile.TemporaryDirectory() as folder:
        agent = Path(folder, "agent.py")
        agent.write_text(AGENT)
        classes = {
            warm: type("Asks", (Asks,), {"agent": Command(["python", str(agent)], warm=warm)})
            for warm in (False, True)
        }
        config = AgentEnvConfig(group_size=siblings)
        costs = {warm: [] for warm in classes}
        async with classes[False](config) as cold, classes[True](config) as warm:
            for number in range(groups + 1):
                for is_warm, env in ((False, cold), (True, warm)):
                    before = children_s()
                    credited = await env.run_group(env.tasks()[0])
                    assert len(credited.group.trajectories) == siblings
                    if number:
                        costs[is_warm].append((children_s() - before) / siblings)
    return costs


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--siblings", type=int, default=4)
    costs = asyncio.run(measure(**vars(parser.parse_args())))
    cold, warm = median(costs[False]), median(costs[True])
    print(f"cold {cold:.2f} CPU s, warm {warm:.2f} CPU s, {cold / warm:.1f} : 1")


if __name__ == "__main__":
    main()
