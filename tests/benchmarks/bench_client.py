"""CPU per model call: ours, its floor and the `openai` client, against one server whose CPU is not counted.

    python -m tests.benchmarks.bench_client [--calls 3000] [--prompt-tokens 600] [--sampled-tokens 64]

Each figure is `process_time` of a client's process per call, after all connections are open. The least of
`--repeats` runs is shown. Aims: chat at most 3 times the floor, a quarter of `openai`; tokens at most twice
their floor; 512 in flight at most 1.3 times 64.

    python -m tests.benchmarks.bench_client --real-lengths

Whole rollouts of eight calls, over prompts of 4,000 to 33,000 tokens with 1,000 sampled tokens each, beside
a loop of `aiohttp` and `orjson` that asks the same and keeps ids and log-probabilities: CPU of this thread
per call, the median of the two in turn. Aims: at most 1.15 times that loop, and 1.3 times with the line of
the record.
"""

import argparse
import asyncio
import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import thread_time

import aiohttp
import orjson

from environments.config import ServerConfig
from environments.record.group_line import encode_group
from tests.benchmarks.client_loops import SAMPLING, token_loop
from turnwise import AgentEnv, AgentEnvConfig, tool

IN_FLIGHT = (64, 512, 1000)
LOOPS = Path(__file__).with_name("client_loops.py")


@contextmanager
def canned_server(*options):
    """Its base URL."""
    command = [sys.executable, "-m", "tests.benchmarks.canned_server", *map(str, options)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield server.stdout.readline().strip()
        finally:
            server.kill()


def cost_ms(client, url, in_flight, options):
    """Milliseconds per call, the least of some runs, or why there are none."""
    command = [sys.executable, str(LOOPS), client, url, str(in_flight), str(options.calls)]
    costs, problem = [], ""
    for _ in range(options.repeats):
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=options.limit_s, check=True
            )
            costs.append(float(done.stdout.split()[-1]))
        except subprocess.TimeoutExpired:
            return f"not within {options.limit_s:.0f} s"
        except subprocess.CalledProcessError as error:
            problem = (error.stderr.strip().splitlines() or ["no output"])[-1][:120]
    return min(costs, default=problem)


def ratios(costs, base):
    """How many times the costs of another client, for each number in flight."""
    pairs = zip(costs, base, strict=True)
    return [one / other for one, other in pairs if isinstance(one, float) and isinstance(other, float)]


TURNS, FIRST_TOKENS, SAMPLED_TOKENS, ADDED_TOKENS = 8, 4000, 1000, 3143
TASK = "The tests fail, find out why and repair it. " * 360
"""Some 4,000 tokens, as a result is some 3,000."""


def source(path, lines=10):
    return "def main():\n    return 1\n" * 400


@tool
async def look(path: str, lines: int = 10) -> str:
    """Look at a file.

    Args:
        path: of the file.
        lines: how many.
    """
    return source(path, lines)


class Repair(AgentEnv):
    """Looks seven times, then says that it is done."""

    name = "repair"
    sandbox = "none"
    tools = (look,)

    def load_items(self):
        return [{"id": "one"}]

    def format_prompt(self, item):
        return TASK

    async def preflight(self, notify=None):
        """The server answers."""

    def compute_reward(self, item, trajectory, ctx):
        return float(ctx.seed % 2)


async def naive_rollout(session, url, specs):
    """The same conversation without us."""
    messages, ids, logprobs = [{"role": "user", "content": TASK}], [], []
    while True:
        body = {"model": "m", "messages": messages, "tools": specs, **SAMPLING, "return_token_ids": True}
        async with session.post(f"{url}/chat/completions", data=orjson.dumps(body)) as response:
            reply = orjson.loads(await response.read())
        choice = reply["choices"][0]
        ids = [*reply["prompt_token_ids"], *choice["token_ids"]]
        logprobs += [each["logprob"] for each in choice["logprobs"]["content"]]
        messages.append(choice["message"])
        if not choice["message"]["tool_calls"]:
            return ids, logprobs
        for call in choice["message"]["tool_calls"]:
            result = source(**json.loads(call["function"]["arguments"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


async def real_lengths(url, repeats, group_size=4):
    """Milliseconds per call: of the naive loop, of our rollouts, and of those with the line of the record."""
    config = AgentEnvConfig(
        group_size=group_size, max_turns=20, max_token_length=65_536, token_budget=65_536,
        max_tokens_per_turn=2048, max_concurrent_rollouts=group_size, tool_output_chars=20_000,
    )  # fmt: skip
    servers = [ServerConfig(base_url=url, model_name="m", num_max_requests_at_once=group_size)]
    figures = {"naive": [], "rollouts": [], "with the record's line": []}
    specs = [look.spec.to_openai()]
    async with aiohttp.ClientSession() as session, Repair(config, servers) as env:
        for index in range(repeats + 1):
            started = thread_time()
            await asyncio.gather(*(naive_rollout(session, url, specs) for _ in range(group_size)))
            naive = thread_time() - started
            started = thread_time()
            credited = await env.run_group(env.tasks()[0])
            rollouts = thread_time() - started
            encode_group(credited)
            line = thread_time() - started
            assert [len(each.turns) for each in credited.group.trajectories] == [TURNS] * group_size, credited
            assert all(len(each.rows) == 1 for each in credited.group.trajectories)
            if index:  # the first one loads
                for each, cpu_s in zip(figures.values(), (naive, rollouts, line), strict=True):
                    each.append(1000 * cpu_s / TURNS / group_size)
    return {name: median(each) for name, each in figures.items()}


def show_real_lengths(options):
    sizes = ("--prompt-tokens", FIRST_TOKENS, "--sampled-tokens", SAMPLED_TOKENS)
    with canned_server(*sizes, "--added-tokens", ADDED_TOKENS, "--last", TURNS - 1) as url:
        costs = asyncio.run(real_lengths(url, options.repeats))
    for name, cost in costs.items():
        print(f"{name:24}{cost:9.3f} ms of CPU per call   {cost / costs['naive']:.2f} times naive")


def main() -> None:
    """Measure every client and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=3000)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--limit-s", type=float, default=300, help="wall clock of each run")
    parser.add_argument("--prompt-tokens", type=int, default=600)
    parser.add_argument("--sampled-tokens", type=int, default=64)
    parser.add_argument("--only", nargs="*", help="clients; default: all")
    parser.add_argument("--real-lengths", action="store_true", help="whole rollouts against a naive loop")
    options = parser.parse_args()
    if options.real_lengths:
        show_real_lengths(options)
        return
    names = options.only or ("floor", "chat", "token_floor", "tokens", "openai")
    sampled_ids = ",".join(map(str, token_loop()[2]))
    sizes = ("--prompt-tokens", options.prompt_tokens, "--sampled-tokens", options.sampled_tokens)
    costs = {}
    with canned_server(*sizes, "--sampled-ids", sampled_ids) as url:
        print(f"{'ms of CPU per call':18}" + "".join(f"{count:>9}" for count in IN_FLIGHT))
        for name in names:
            row = [cost_ms(name, url, count, options) for count in IN_FLIGHT]
            costs[name] = row
            shown = "".join(f"{each:9.3f}" if isinstance(each, float) else f"  {each}" for each in row)
            base = {"chat": "floor", "tokens": "token_floor"}.get(name, "chat")
            times = ratios(row, costs[base]) if base in costs and name not in ("floor", "token_floor") else []
            of = f"   times {base}:" + "".join(f" {each:.2f}" for each in times) if times else ""
            print(f"{name:18}{shown}{of}", flush=True)


if __name__ == "__main__":
    main()
