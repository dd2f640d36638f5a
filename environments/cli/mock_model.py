"""`turnwise mock-model`: an environment's scripted agent, or a second model, behind an OpenAI-like server."""

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from environments.base_env import AgentEnv
from environments.cli.env_command import EnvCall, EnvCommand
from environments.cli.mock_roles import MockRole
from environments.containment.in_flight import InFlight
from environments.data.item_ids import item_ids
from environments.data.tasks import GroupTask
from environments.extras import needs_extra
from environments.hooks import writes
from environments.lifecycle.begun_rollout import begun
from environments.lifecycle.hook_signatures import takes_context
from environments.policy.rendering.tokenizer_files import EMBEDDED, EMBEDDED_TOKENIZER_DIR
from environments.policy.scripted import Script, generic_summary
from environments.rollout.context import asks_for_summary
from environments.rollout.prompt import opening_messages
from environments.second_models.asked_model import ROLES
from environments.trajectory import Message
from environments.turn_level_reward import call_hook
from tools.errors import ConfigError

if TYPE_CHECKING:
    from environments.policy.mock.mock_token_wires import ServerKind

Opening = tuple[tuple[str, str], ...]
"""Roles and texts of the messages before the first turn."""


@click.command("mock-model", cls=EnvCommand, default_env="code_debug")
@click.option(
    "--role",
    type=click.Choice(["policy", *ROLES]),
    default="policy",
    show_default=True,
    help="judge, user, summariser: it answers what scripted_judge, say, says.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0: a free one.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--model", default="scripted", show_default=True, help="The model name that it answers to.")
@click.option(
    "--quirk", "quirks", multiple=True, metavar="NAME",
    help="Answer as another server does: openai, vllm, sglang, llamacpp, ollama, openrouter, mistral, "
    "transformers, or one of their quirks (`list` names them). May be given several times.",
)  # fmt: skip
@click.option(
    "--kind",
    type=click.Choice(["plain", "vllm", "sglang"]),
    default="plain",
    show_default=True,
    help="vllm, sglang: it says that it is one, and takes token ids where they do.",
)
def command(call: EnvCall, port: int, host: str, **options: Any) -> None:
    """Serve an environment's scripted agent as an OpenAI-compatible model.

    ENV is code_debug when it is not given. The item that a request is about is found by the messages that
    its conversation begins with, for a judge or a user by what of it the messages quote. The agent's skill
    is --env.scripted_skill.
    """
    if "list" in options["quirks"]:
        _list_quirks()
        return
    asyncio.run(_serve(call.open(), host, port, _Options(**options)))


def _list_quirks() -> None:
    with needs_extra("mock", "mock-model"):
        from environments.policy.mock.mock_quirks import QUIRKS, SERVERS  # noqa: PLC0415
    width = max(map(len, [*SERVERS, *QUIRKS]))
    for name, quirks in SERVERS.items():
        click.echo(f"{name:<{width}}  {', '.join(quirks)}")
    for name, quirk in QUIRKS.items():
        click.echo(f"{name:<{width}}  {quirk.says}")


async def _serve(env: AgentEnv, host: str, port: int, options: "_Options") -> None:
    with needs_extra("mock", "mock-model"):
        import uvicorn  # noqa: PLC0415

        from environments.policy.mock.mock_quirks import quirks_named  # noqa: PLC0415
        from environments.policy.mock.mock_server import MockSettings, mock_app  # noqa: PLC0415
        from environments.policy.mock.quirky_server import QuirkyServer  # noqa: PLC0415
    chosen = quirks_named(options.quirks)
    async with env.loaded():
        app = mock_app(
            await script_of(env, options.role),
            skill=env.config.scripted_skill,
            renderer=env.renderer,
            settings=MockSettings(model=options.model, kind=options.kind),
        )
        try:
            listening = socket.create_server((host, port))
        except (OSError, OverflowError) as error:
            raise ConfigError(f"cannot listen on {host}:{port}: {error}") from None
        with listening:
            # It listens already: whoever reads the line can connect at once.
            url = f"http://{host}:{listening.getsockname()[1]}/v1"
            click.echo(f"{url} plays {len(env.items)} items of {env.name} as {options.what}; ^C ends")
            if options.kind != "plain":
                name = env.config.tokenizer_name
                folder = EMBEDDED_TOKENIZER_DIR if name == EMBEDDED else name
                click.echo(f"token ids: --openai.family chatml --env.tokenizer_name {folder}")
            server = QuirkyServer(app, chosen)
            await uvicorn.Server(uvicorn.Config(server, log_level="warning")).serve(sockets=[listening])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    model: str
    role: str
    kind: "ServerKind"
    quirks: Sequence[str]

    @property
    def what(self) -> str:
        """The model, in words."""
        return f"model {self.model!r}" + ("" if self.role == "policy" else f", the {self.role}")


async def script_of(env: AgentEnv, role: str) -> "Callable[[Sequence[Message]], Script | None]":
    """Chooses the script by a conversation."""
    if role != "policy":
        return MockRole(env, role).script
    known = await items_by_opening(env)
    if len(known) < len(env.items):
        click.echo(
            f"{len(env.items)} items have {len(known)} different openings: of those that share one the last "
            "is played",
            err=True,
        )
    if writes(env, "load_eval_items") or env.config.eval_share:
        known = await _by_opening(env, await call_hook("load_eval_items", env.load_eval_items)) | known
    return partial(script_for, env, known)


async def items_by_opening(env: AgentEnv) -> dict[Opening, Any]:
    """The items by what their conversations begin with."""
    return await _by_opening(env, env.items)


async def _by_opening(env: AgentEnv, items: Sequence[Any]) -> dict[Opening, Any]:
    tasks = [GroupTask(item=item, item_id=name) for item, name in zip(items, item_ids(items), strict=True)]
    return {_spoken(await _opening(env, task.for_rollout())): task.item for task in tasks}


async def _opening(env: AgentEnv, task: GroupTask) -> tuple[Message, ...]:
    """What a rollout begins with; a prompt that may show the rollout's state takes a sandbox to prepare."""
    with env.hook_calls(InFlight(item_id=task.item_id, sibling=0)) as calls:
        if not takes_context(env.format_prompt, 1):
            prompt = await calls.hook("format_prompt", env.format_prompt, task.item)
            return opening_messages(prompt, system=env.system_prompt, env=env.name)
        async with begun(env, task, 0, calls) as (_, hooks):
            return await hooks.opening()


def script_for(env: AgentEnv, items: Mapping[Opening, Any], messages: Sequence[Message]) -> Script | None:
    """The script for what a conversation asks about its item; the generic one when it is about none of them.

    Of openings that begin alike the longest one counts.
    """
    sums_up = asks_for_summary(messages, env.condensers)
    script = env.scripted_summary if sums_up else env.scripted_choices
    spoken = _spoken(messages)
    for length in sorted({len(opening) for opening in items}, reverse=True):
        if spoken[:length] in items:
            return partial(script, items[spoken[:length]])
    return generic_summary if sums_up else None


def _spoken(messages: Sequence[Message]) -> Opening:
    return tuple((message.role, message.content) for message in messages)
