"""What recording costs: the turns of agents that call the endpoint, against those of our own loop.

`python -m tests.benchmarks.bench_recorded` prints CPU per turn: of our loop; of the same clients against a
server that answers at once; and of the endpoint, which is what recording takes beyond those clients. The
ratio of endpoint and loop is of one machine in one run.
"""

import argparse
import asyncio
import json
from time import process_time

import aiohttp
import orjson
from aiohttp import web

from turnwise import AgentEnv, AgentEnvConfig, Choice, TurnLevelRewardMixin, call, say, tool

TASK = "Count the boxes on the shelves of the cellar, one after another, and add them up. " * 10
RESULT = "The shelf holds three boxes of tea and a jar of ink. " * 8
FUNCTION = {"name": "look", "parameters": {}}


@tool
def look(shelf: int) -> str:
    """Look at a shelf."""
    return RESULT


class Looks(TurnLevelRewardMixin, AgentEnv):
    name = "looks"
    sandbox = "none"
    tools = (look,)
    turns = 20

    def load_items(self):
        return [{"id": "one"}]

    def format_prompt(self, item):
        return TASK

    async def scripted_choices(self, item, messages, tools, skill):
        if len(messages) > 2 * self.turns - 2:
            return [Choice(probability=1.0, message=say("They are sixty."))]
        return [Choice(probability=1.0, message=call("look", {"shelf": len(messages)}))]

    async def score_turn(self, item, turn, ctx):
        return float(len(turn.tool_results))

    async def compute_outcome(self, item, trajectory, ctx):
        return 1.0


class Recorded(Looks):
    session: aiohttp.ClientSession
    act: staticmethod

    async def play(self, item, ctx):
        headers = {"Authorization": f"Bearer {ctx.endpoint.api_key}"}
        await self.act(self.session, ctx.endpoint.base_url, headers, self.turns)


async def chat(session, base_url, headers, turns):
    messages, tools = [{"role": "user", "content": TASK}], [{"type": "function", "function": FUNCTION}]
    for _ in range(turns):
        body = {"model": "m", "messages": messages, "tools": tools}
        reply = await post(session, f"{base_url}/chat/completions", headers, body)
        messages.append(message := reply["choices"][0]["message"])
        for made in message.get("tool_calls", ()):
            json.loads(made["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": made["id"], "content": RESULT})


async def responses(session, base_url, headers, turns):
    items, tools = [{"role": "user", "content": TASK}], [{"type": "function", **FUNCTION}]
    for _ in range(turns):
        body = {"model": "m", "input": items, "tools": tools}
        reply = await post(session, f"{base_url}/responses", headers, body)
        items += reply["output"]
        for made in reply["output"]:
            if made["type"] == "function_call":
                json.loads(made["arguments"])
                output = {"type": "function_call_output", "call_id": made["call_id"], "output": RESULT}
                items.append(output)


async def post(session, url, headers, body):
    async with session.post(url, data=orjson.dumps(body), headers=headers) as answer:
        return orjson.loads(await answer.read())


CALLED = {"name": "look", "arguments": '{"shelf": 1}'}
CALLING = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "c", "type": "function", "function": CALLED}],
}
CANNED = {
    "choices": [{"message": CALLING}],
    "output": [{"type": "function_call", "id": "f", "call_id": "c", "status": "completed", **CALLED}],
}


async def measure_rollouts(env_class, size):
    limits = {"max_turns": 100, "token_budget": 100_000, "max_token_length": 100_000}
    config = AgentEnvConfig(group_size=size, max_concurrent_rollouts=size, **limits)
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
        env_class(config) as env,
    ):
        env_class.session = session
        started = process_time()
        credited = await env.run_group(env.tasks()[0])
        spent = process_time() - started
    assert len(credited.group.trajectories) == size, credited.group.failures
    return spent


async def measure_clients(act, size, turns):
    async def answer(request):
        await request.read()
        return web.Response(body=orjson.dumps(CANNED))

    runner = web.ServerRunner(web.Server(answer, access_log=None))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        started = process_time()
        await asyncio.gather(*(act(session, url, {}, turns) for _ in range(size)))
        spent = process_time() - started
    await runner.cleanup()
    return spent


async def compare(size, turns):
    Looks.turns = turns
    await measure_rollouts(Looks, 4)  # what is loaded once
    for act in (chat, responses):
        Recorded.act = staticmethod(act)
        await measure_rollouts(Recorded, 4)
        ours = await measure_rollouts(Looks, size)
        clients = await measure_clients(act, size, turns)
        endpoint = await measure_rollouts(Recorded, size) - clients
        loop_ms, client_ms, endpoint_ms = (1e3 * each / size / turns for each in (ours, clients, endpoint))
        print(
            f"{act.__name__:10} our loop {loop_ms:.2f} ms a turn, clients {client_ms:.2f}, "
            f"endpoint {endpoint_ms:.2f}: {endpoint / ours:.2f} x our loop",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=100)
    parser.add_argument("--turns", type=int, default=20)
    given = parser.parse_args()
    asyncio.run(compare(given.rollouts, given.turns))
