"""The contract of tokens, held by shipped environments: what a model saw before a turn is its row so far.

Over the scripted policy, and over HTTP against the mock server, asked by messages and by token ids.
"""

from contextlib import asynccontextmanager
from functools import partial
from importlib import import_module

import pytest

from environments.config import ServerConfig
from environments.policy.mock_server import MockSettings, mock_app
from environments.policy.rendering.chatml import EMBEDDED_TOKENIZER_DIR, ChatMLRenderer
from environments.rollout.hooks import Hooks
from environments.rollout.items.tasks import GroupTask
from environments.run.loading import shipped_target
from environments.trajectory import IGNORED, Kept
from environments.wire.credited_rows import credited_rows
from tests.equipment.running_server import running_server
from tests.equipment.shipped import WITH_ITEMS
from turnwise.cli.mock_model import script_for

RENDERER = ChatMLRenderer.embedded()
WIRES = ("scripted", "chat", "vllm")


def class_of(name):
    module, _, cls = shipped_target(name).partition(":")
    return getattr(import_module(module), cls)


def made(name, servers=(), **settings):
    cls = class_of(name)
    config, _ = cls.config_init()
    update = {"group_size": 2, "min_group_size": 1, "max_items": 2, "scripted_skill": 0.7} | settings
    return cls(config.model_copy(update=update), servers)


@asynccontextmanager
async def playing(name, wire):
    """The environment and its first task, played over a wire."""
    scripted = made(name)
    async with scripted.loaded():
        task = GroupTask(item=scripted.items[0], item_id=scripted.item_ids[0])
    if wire == "scripted":
        yield scripted, task
        return
    known = {(): task.item}
    settings = MockSettings(kind="plain" if wire == "chat" else wire)
    script = partial(script_for, scripted, known)
    app = mock_app(script, skill=0.7, renderer=RENDERER, settings=settings)
    async with running_server(app) as url:
        server = ServerConfig(base_url=url, model_name="scripted", server_type=wire, family="chatml")
        yield made(name, [server], tokenizer_name=str(EMBEDDED_TOKENIZER_DIR)), task


def names():
    return sorted(WITH_ITEMS)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("name", names())
async def test_what_a_model_saw_rendered_anew_is_the_row_up_to_its_turn(name, wire):
    async with playing(name, wire) as (env, task), env:
        group = await env.rollout_group(task, 2)
        tools = specs_of(env, task.item)
    assert group.failures == ()
    for trajectory in group.trajectories:
        assert trajectory.exact
        for turn, seen in zip(trajectory.turns, contexts(trajectory), strict=True):
            row = trajectory.rows[turn.span.row].token_ids
            assert RENDERER.prompt_ids(seen, tools) == row[: turn.span.start]
            sampled = RENDERER.parse(row[turn.span.start : turn.span.end])
            assert sampled.content == turn.message.content
    check_masks(env, group)
    replied = any(turn.replies for trajectory in group.trajectories for turn in trajectory.turns)
    assert replied == (type(env).respond is not Hooks.respond)


def specs_of(env, item):
    names = env.tools_for(item)
    return tuple(spec for spec in env.toolset.specs if names is None or spec.name in names)


def contexts(trajectory):
    """Per turn, what the model saw."""
    at = len(trajectory.prompt)
    for turn in trajectory.turns:
        before = trajectory.messages[:at]
        parts = (Kept(start=0, end=at),) if turn.context is None else turn.context
        yield [
            message
            for part in parts
            for message in (before[part.start : part.end] if isinstance(part, Kept) else [part])
        ]
        at += 1 + len(turn.tool_results) + len(turn.replies)


def check_masks(env, group):
    """The spans of the trained turns are the mask, so that no prompt, result or reply is in it."""
    for row in credited_rows(env.credit(group)):
        trained = [index for index, label in enumerate(row.mask) if label != IGNORED]
        spans = [range(turn.span.start, turn.span.end) for turn in row.turns if turn.trained]
        assert [index for span in spans for index in span] == trained
