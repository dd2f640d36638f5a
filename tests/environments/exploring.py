"""An environment whose conversation grows by a long answer at each turn, for tests of condensers."""

import re
from contextlib import asynccontextmanager

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig, ServerConfig
from environments.policy.mock_server import MockSettings, mock_app
from environments.policy.rendering.chatml import EMBEDDED_TOKENIZER_DIR, ChatMLRenderer
from environments.policy.scripted import Choice, call, say
from environments.rollout.items.tasks import GroupTask
from environments.turn_level_reward import TurnLevelRewardMixin
from tests.environments.policy.token_server import server_type_of
from tests.equipment.quirky_server import QuirkyServer
from tests.equipment.running_server import running_server
from tests.equipment.server_quirks import quirks_named
from tools.registry import Toolset, tool
from turnwise.cli.mock_model import items_by_opening, script_for

RENDERER = ChatMLRenderer.embedded()
TASK = GroupTask(item={"id": "house"}, item_id="house")
ROOMS = 8
TOKENIZER = str(EMBEDDED_TOKENIZER_DIR)
WIRES = {
    "scripted": None,
    "chat-ids": ("chat", None, ()),
    "chat-text": ("chat", None, ("openai-no-ids",)),
    "vllm-completions": ("vllm", "completions", ()),
    "vllm-generate": ("vllm", "generate", ()),
    "sglang-generate": ("sglang", "generate", ()),
    "sglang-chat": ("sglang", "chat", ()),
    "llama.cpp": ("llama.cpp", "completion", ()),
}
"""Server type, token wire and quirks of each way to play."""


@tool
def look(room: int) -> str:
    """Look into a room.

    Args:
        room: which.
    """
    return f"room {room} holds {room * 7919 % 100}; " + f"dust and {room} old boxes, " * 6


class Exploring(TurnLevelRewardMixin, AgentEnv):
    """The agent looks into one room after the other; the last number that it sees says where it is."""

    name = "exploring"
    sandbox = "none"
    tools = (Toolset("looking", (look,)),)

    def load_items(self):
        return [TASK.item]

    def format_prompt(self, item):
        return "Look into every room."

    def score_turn(self, item, turn, ctx):
        return 1.0

    def scripted_choices(self, item, messages, tools, skill):
        room = last_room(messages)
        if room >= ROOMS:
            return [Choice(probability=1.0, message=say("All of them."))]
        clean = call("look", {"room": room + 1}, content="Next.")
        spaced = call("look", f'{{ "room" : {room + 1} }}', content="On.")
        return [Choice(probability=0.6, message=clean), Choice(probability=0.4, message=spaced)]

    def scripted_summary(self, item, messages, tools, skill):
        return [Choice(probability=1.0, message=say(f"I was in room {last_room(messages)}."))]


def last_room(messages):
    found = [int(each) for message in messages for each in re.findall(r"room (\d+)", message.content)]
    return max(found, default=0)


def made(*, servers=(), cls=Exploring, policy=None, **settings):
    defaults = {"group_size": 2, "min_group_size": 1, "max_turns": 20}
    return cls(AgentEnvConfig(**defaults | settings), servers, policy=policy)


@asynccontextmanager
async def playing(wire, *, window=None, cls=Exploring, server=None, around=None, **settings):
    """The environment, opened, played over one of the wires by its own script."""
    if WIRES[wire] is None:
        async with made(cls=cls, **settings) as env:
            yield env
        return
    kind, token_wire, quirks = WIRES[wire]
    async with serving(kind, quirks, window=window, cls=cls, around=around, **settings) as url:
        asked = ServerConfig(
            **{"base_url": url, "model_name": "scripted", "family": "chatml"}
            | {"server_type": server_type_of(kind, token_wire)}
            | (server or {})
        )
        async with made(servers=[asked], tokenizer_name=TOKENIZER, cls=cls, **settings) as env:
            yield env


@asynccontextmanager
async def serving(kind, quirks=(), *, window=None, cls=Exploring, around=None, renderer=RENDERER, **settings):
    """The mock server of the environment, as `turnwise mock-model` starts it."""
    async with made(cls=cls, **settings) as env:
        known = await items_by_opening(env)
        app = mock_app(
            lambda messages: script_for(env, known, messages),
            skill=1.0,
            renderer=renderer,
            settings=MockSettings(kind="plain" if kind == "chat" else kind, context_tokens=window),
        )
        app = QuirkyServer(app, quirks_named(quirks))
        async with running_server(app if around is None else around(app)) as url:
            yield url
