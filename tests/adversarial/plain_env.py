"""Environments whose code ends, cancels or blocks what it should not, on one item of six or on all."""

import asyncio
import re
import time

from turnwise import AgentEnv


class Plain(AgentEnv):
    name = "plain"

    async def load_items(self):
        return [{"id": f"item{number}", "number": number} for number in range(6)]

    def format_prompt(self, item):
        return "Say something."

    async def misbehave(self):
        pass

    async def compute_reward(self, item, trajectory, ctx):
        print("reward of", item["id"], flush=True)  # noqa: T201
        if item["number"] == 3:
            await self.misbehave()
        return float(trajectory.sibling)


class Sleeping(Plain):
    name = "sleeping"

    async def misbehave(self):
        time.sleep(600)  # noqa: ASYNC251


def judge():
    return re.match(r"(a+)+$", "a" * 60 + "b")


class Matching(Plain):
    """A regular expression that takes for ever holds the interpreter, and every thread with it."""

    name = "matching"

    async def misbehave(self):
        judge()


class CancellingAll(Plain):
    name = "cancelling_all"

    async def misbehave(self):
        for task in asyncio.all_tasks():
            task.cancel()


class Broken(Plain):
    """The same bug in every rollout."""

    name = "broken"

    async def compute_reward(self, item, trajectory, ctx):
        print("rolled out", item["id"], flush=True)  # noqa: T201
        return {}["no such key"]


class Waiting(Plain):
    name = "waiting"

    async def compute_reward(self, item, trajectory, ctx):
        print("waiting", flush=True)  # noqa: T201
        await asyncio.sleep(600)


class SlowStart(Plain):
    """Loading takes its time, and blocks: nobody else waits for the event loop yet."""

    name = "slow_start"

    async def load_items(self):
        time.sleep(3)  # noqa: ASYNC251
        return await super().load_items()
