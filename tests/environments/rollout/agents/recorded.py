"""Environments whose agents own their loop, and requests as any program may send them."""

import asyncio
import json

import aiohttp

from turnwise import AgentEnv, AgentEnvConfig, Choice, Toolset, TurnLevelRewardMixin, call, say, tool

SUMS = 3
"""Calls of an agent before its answer."""


@tool
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


ADD = Toolset("sums", (add,)).specs[0].to_openai()


class Sums(TurnLevelRewardMixin, AgentEnv):
    """Adds three times, then answers; a turn earns its sum, the outcome counts turns."""

    name = "sums"
    sandbox = "none"

    def load_items(self):
        return [{"id": "one", "task": "Add."}]

    def format_prompt(self, item):
        return item["task"]

    def scripted_choices(self, item, messages, tools, skill):
        done = sum(message.role == "tool" for message in messages)
        if done == SUMS:
            return [Choice(probability=1.0, message=say("done"))]
        return [
            Choice(probability=0.5, message=call("add", {"a": done, "b": 1})),
            Choice(probability=0.5, message=call("add", {"a": done, "b": 2}, content="two")),
        ]

    def score_turn(self, item, turn, ctx):
        return sum(float(result.content) for result in turn.tool_results) if turn.tool_results else None

    def compute_outcome(self, item, trajectory, ctx):
        return float(len(trajectory.turns))


class BuiltIn(Sums):
    tools = (add,)


class Talk(TurnLevelRewardMixin, AgentEnv):
    """The model says A or BBBBB; a B earns 1. No prompt: agents say what they like."""

    name = "talk"
    sandbox = "none"

    def load_items(self):
        return [{"id": "one"}]

    def scripted_choices(self, item, messages, tools, skill):
        return [Choice(probability=0.5, message=say("A")), Choice(probability=0.5, message=say("BBBBB"))]

    def score_turn(self, item, turn, ctx):
        return float("B" in turn.message.content)

    def compute_outcome(self, item, trajectory, ctx):
        return 0.0


def user(text):
    return {"role": "user", "content": text}


def system(text):
    return {"role": "system", "content": text}


async def post(endpoint, body, path="/chat/completions", *, key=None, headers=None):
    """Status, JSON and headers of an answer."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    given = {"Authorization": f"Bearer {endpoint.api_key if key is None else key}", **(headers or {})}
    async with (
        aiohttp.ClientSession() as session,
        session.post(endpoint.base_url + path, data=data, headers=given) as answer,
    ):
        return answer.status, json.loads(await answer.text()), dict(answer.headers)


async def ask(endpoint, *messages, **fields):
    status, answer, _ = await post(endpoint, {"model": "m", "messages": list(messages), **fields})
    assert status == 200, answer
    return answer["choices"][0]["message"]


async def roll_out(env_class, *, policy=None, servers=None, **settings):
    settings = {"group_size": 1, "min_group_size": 1, **settings}
    async with env_class(AgentEnvConfig(**settings), servers, policy=policy) as env:
        return await env.run_group(env.tasks()[0])


def rolled_out(env_class, **settings):
    credited = asyncio.run(roll_out(env_class, **settings))
    assert credited.group.failures == ()
    return credited.group.trajectories


def played(base, play, **attributes):
    return type("Played", (base,), {"play": play, **attributes})
