"""What recording costs: agents that own their loop against our own loop, and 500 of them at once.

`python -m tests.benchmarks.bench_recorded`: CPU of rollouts of our loop; of the same turns by agents that
call the endpoint; and of the same clients against a server that answers at once, which is taken off. The
ratio is of the two on one machine in one run.

`python -m tests.benchmarks.bench_recorded --hostile`: six honest rollouts beside a program of
`tests/environments/rollout/agents/hostile.py`, one attack after another; how long the event loop was busy at
a stretch at most, in CPU of its own thread. Aim: 0.3 s at most, and all six end as they do alone.
"""

import argparse
import asyncio
import json
from time import monotonic, process_time

import aiohttp
import orjson
from aiohttp import web

from tests.benchmarks.bench_in_flight import Heartbeat
from tests.environments.rollout.agents.neighbours import ATTACKS, roll_out_beside
from turnwise import AgentEnv, AgentEnvConfig, Choice, TurnLevelRewardMixin, call, say, tool

_TASK = "Count the boxes on the shelves of the cellar, one after another, and add them up. " * 10


@tool
def look(shelf: int) -> str:
    """Look at a shelf."""
    return f"shelf {shelf} holds three boxes of tea and a jar of ink. " * 8


TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {}}}]


class Looks(TurnLevelRewardMixin, AgentEnv):
    """So many looks, then an answer."""

    name = "looks"
    sandbox = "none"
    tools = (look,)
    turns = 20

    def load_items(self):
        return [{"id": "one"}]

    def format_prompt(self, item):
        return _TASK

    async def scripted_choices(self, item, messages, tools, skill):
        if len(messages) > 2 * self.turns - 2:
            return [Choice(probability=1.0, message=say("They are sixty."))]
        return [Choice(probability=1.0, message=call("look", {"shelf": len(messages)}))]

    async def score_turn(self, item, turn, ctx):
        return float(len(turn.tool_results))

    async def compute_outcome(self, item, trajectory, ctx):
        return 1.0


async def act(session, url, headers, turns):
    """The agent: raw requests over one connection."""
    messages = [{"role": "user", "content": _TASK}]
    for _ in range(turns):
        body = orjson.dumps({"model": "m", "messages": messages, "tools": TOOLS})
        async with session.post(url, data=body, headers=headers) as answer:
            message = orjson.loads(await answer.read())["choices"][0]["message"]
        messages.append(message)
        for made in message.get("tool_calls", ()):
            result = (
                f"shelf {json.loads(made['function']['arguments'])['shelf']} holds three boxes of tea. " * 9
            )
            messages.append({"role": "tool", "tool_call_id": made["id"], "content": result})


class Recorded(Looks):
    """The same by an agent of its own."""

    session: aiohttp.ClientSession

    async def play(self, item, ctx):
        headers = {"Authorization": f"Bearer {ctx.endpoint.api_key}"}
        await act(self.session, f"{ctx.endpoint.base_url}/chat/completions", headers, self.turns)


async def rolled_out(env_class, size, most):
    config = AgentEnvConfig(
        group_size=size,
        max_concurrent_rollouts=most,
        max_turns=100,
        token_budget=100_000,
        max_token_length=100_000,
    )
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        env_class.session = session
        async with env_class(config) as env:
            cpu, wall = process_time(), monotonic()
            credited = await env.run_group(env.tasks()[0])
            cpu, wall = process_time() - cpu, monotonic() - wall
    assert len(credited.group.trajectories) == size, credited.group.failures
    return cpu, wall


async def clients_alone(size, turns):
    """CPU of the clients and of a server that answers at once."""
    made = [{"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"shelf": 1}'}}]
    canned = orjson.dumps(
        {"choices": [{"message": {"role": "assistant", "content": "", "tool_calls": made}}]}
    )

    async def answer(request):
        await request.read()
        return web.Response(body=canned)

    runner = web.ServerRunner(web.Server(answer, access_log=None))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        cpu = process_time()
        await asyncio.gather(*(act(session, url, {}, turns) for _ in range(size)))
        cpu = process_time() - cpu
    await runner.cleanup()
    return cpu


def show_hostile(attacks):
    async def measured(attack):
        heart = Heartbeat()
        beating = asyncio.create_task(heart.beat())
        credited, _ = await roll_out_beside(attack, turns=60, max_turns=100, rollout_timeout_s=60)
        beating.cancel()
        return [(each.stop_reason, each.rewards) for each in credited.group.trajectories], heart.worst()

    alone, _ = asyncio.run(measured(None))
    for attack in attacks or ATTACKS:
        results, (late_ms, cpu_ms) = asyncio.run(measured(attack))
        equal = "as alone" if results == alone else "NOT as alone"
        print(f"{attack:34}{cpu_ms:6.0f} ms at most, {late_ms:6.0f} ms on the clock, {equal}", flush=True)


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rollouts", type=int, default=500)
    options.add_argument("--turns", type=int, default=20)
    options.add_argument("--hostile", nargs="*", metavar="ATTACK", help="beside these; without a name: all")
    given = options.parse_args()
    if given.hostile is not None:
        show_hostile(given.hostile)
    else:
        asyncio.run(compare(given))


async def compare(given):
    size, Looks.turns = given.rollouts, given.turns
    turns = size * given.turns
    for env_class in (Looks, Recorded):
        await rolled_out(env_class, 4, 4)  # what loads once
    ours, _ = await rolled_out(Looks, size, size)
    alone = await clients_alone(size, given.turns)
    theirs, wall = await rolled_out(Recorded, size, size)
    print(f"{size} at once, {turns} turns: 0 lost, {wall:.1f} s")
    print(f"our loop            {1e3 * ours / turns:.2f} ms of CPU a turn")
    print(f"clients, null server {1e3 * alone / turns:.2f} ms")
    print(f"recorded, all        {1e3 * theirs / turns:.2f} ms")
    part = theirs - alone
    print(f"the endpoint's part  {1e3 * part / turns:.2f} ms, {part / ours:.2f} of our loop's")


if __name__ == "__main__":
    main()
