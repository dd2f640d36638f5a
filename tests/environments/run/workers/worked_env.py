"""A game that workers play, and what its code does to them, item by item."""

import asyncio
import ctypes
import os
import sys
import time
from collections import Counter
from pathlib import Path

import aiohttp
from pydantic import Field

from environments.config import AgentEnvConfig
from tools.sandbox.local import probe
from turnwise import AgentEnv, Choice, TurnLevelRewardMixin, call, say, tool

IN_WORKER = "environments.run.workers.rollout_worker" in sys.modules
"""Whether this process rolls out, and is not the one that plans."""
PREPARED = Counter()
"""Rollouts of each item of `Branched` in this process; a group has two trunks."""


class WorkedConfig(AgentEnvConfig):
    count: int = 12
    does: dict[str, str] = Field(default={}, description="What the reward of an item does, by its id.")
    opens: str = Field(default="", description="What `setup` does in a worker.")
    closes: str = ""
    data: str = ""


@tool
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


class Worked(TurnLevelRewardMixin, AgentEnv):
    """Adds numbers; a reward for what the last message says."""

    name = "worked"
    tools = (add,)
    sandbox = "none"
    env_config_cls = WorkedConfig

    async def setup(self):
        if IN_WORKER and self.config.opens:
            does(self.config.opens)

    async def teardown(self):
        if IN_WORKER and self.config.closes:
            raise ValueError(self.config.closes)

    async def load_items(self):
        other = 1 if IN_WORKER and self.config.opens == "other items" else 0
        return [{"id": str(number), "number": number + other} for number in range(self.config.count)]

    def format_prompt(self, item):
        return f"What is {item['number']} + 1?"

    async def score_turn(self, item, turn, ctx):
        action = self.config.does.get(item["id"], "")
        if action == "wait":
            await asyncio.Event().wait()
        elif action == "cancel":
            raise asyncio.CancelledError
        elif action == "print":
            print(f"item {item['id']} is scored")  # noqa: T201  # as users do
        elif action:
            does(action)
        return float(len(turn.message.content or "") % 3)

    async def passed(self, item, trajectory):
        return trajectory.turns[-1].message.content == "done"

    def scripted_choices(self, item, messages, tools, skill):
        calls = call("add", {"a": item["number"], "b": 1})
        others = [Choice(probability=0.25, message=say(text)) for text in ("done", "I do not know")]
        return [Choice(probability=0.5, message=calls), *others]


class InSandboxes(Worked):
    """The same with a sandbox for each rollout."""

    name = "in_sandboxes"
    sandbox = "local"
    keep = ("kept",)

    async def prepare(self, item, sandbox):
        await sandbox.write_file("kept", b"kept")


class Branched(InSandboxes):
    """The first branch of an item ends its worker, once: there is a file then."""

    name = "branched"

    async def prepare(self, item, sandbox):
        await super().prepare(item, sandbox)
        PREPARED[item["id"]] += 1
        ended = Path(self.config.data)
        if IN_WORKER and PREPARED[item["id"]] == 3 and not ended.exists():
            ended.touch()
            os._exit(13)


class InAnotherTier(InSandboxes):
    """The same, on nodes where namespaces do not work."""

    name = "in_another_tier"

    async def setup(self):
        if IN_WORKER:
            probe._best_tier = lambda: ("C", ())


class Sharing(Worked):
    """Rollouts keep what belongs to one of them on self."""

    name = "sharing"

    def format_prompt(self, item):
        self.current = item["id"]
        return super().format_prompt(item)


class Chosen(Worked):
    """What comes next is decided by how the last item went."""

    name = "chosen"

    def next_items(self, history):
        if history.in_flight or len(history) == 6:
            return None if len(history) == 6 else []
        return [str(int(4 * sum(each.mean_score or 0 for each in history)) % 12)]


class Updated(Worked):
    """A trainer that loads new weights while an item is rolled out."""

    name = "updated"

    async def score_turn(self, item, turn, ctx):
        if item["id"] == "5":
            url = self.config.data + "/update_weight_version"
            async with (
                aiohttp.ClientSession() as client,
                client.post(url, json={"new_version": "2"}) as answer,
            ):
                assert answer.status == 200
        return 0.5


def leave_a_child():
    if os.fork() == 0:
        time.sleep(3600)
    os._exit(13)


def eat():
    eaten = []
    while True:
        eaten.append(b"x" * 10_000_000)


def once(path):
    """Only the first process comes past it."""
    try:
        Path(path).touch(exist_ok=False)
    except FileExistsError:
        time.sleep(3600)


DOES = {
    "exit": lambda: os._exit(13),
    "leave": leave_a_child,
    "crash": lambda: ctypes.string_at(0),
    "eat": eat,
    "quit": lambda: sys.exit(3),
    "block": lambda: time.sleep(3600),
    # Native code that never gives the interpreter back.
    "hold": lambda: ctypes.PyDLL(None).sleep(3600),
    "variable": os.environ.__getitem__,
    "once": once,
}


def does(action):
    """What code of an environment may do to its process: `exit`, `once PATH`, …"""
    name, *arguments = action.split()
    if name in DOES:
        DOES[name](*arguments)
