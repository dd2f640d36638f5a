"""`turnwise mock-model`: an environment's scripted agent behind an OpenAI-compatible server."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import click

from environments.base_env import AgentEnv
from environments.commands.env_command import EnvCall, EnvCommand
from environments.policy.mock_server import mock_app, serve
from environments.policy.scripted import Script
from environments.trajectory import Message


@click.command("mock-model", cls=EnvCommand)
@click.option("--port", type=click.IntRange(1, 65535), default=8000, show_default=True)
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--model", default="scripted", show_default=True, help="The model name that it answers to.")
def command(call: EnvCall, port: int, host: str, model: str) -> None:
    """Serve an environment's scripted agent as an OpenAI-compatible model.

    It finds the item that a request is about by the text of its first user message. Its skill is
    --env.scripted_skill.
    """
    env = call.open()
    items = asyncio.run(env.load_items())
    app = mock_app(
        partial(script_for, env, items_by_task(env, items)),
        skill=env.config.scripted_skill,
        renderer=env.renderer,
        model=model,
    )
    click.echo(f"http://{host}:{port}/v1 plays {len(items)} items of {env.name} as model {model!r}; ^C ends")
    serve(app, host=host, port=port)


def items_by_task(env: AgentEnv, items: Sequence[Any]) -> dict[str, Any]:
    """The items by the text of their first user message."""
    return {task: item for item in items if (task := _task(env.opening(item))) is not None}


def script_for(env: AgentEnv, items: Mapping[str, Any], messages: Sequence[Message]) -> Script | None:
    """The script for the item that a conversation is about; `None` when it is about none of them."""
    item = items.get(_task(messages) or "")
    return None if item is None else partial(env.scripted_choices, item)


def _task(messages: Sequence[Message]) -> str | None:
    return next((message.content for message in messages if message.role == "user"), None)
