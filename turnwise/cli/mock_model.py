"""`turnwise mock-model`: serves an environment's scripted agent, or a scripted second model."""

import asyncio
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import click

from environments.base_env import AgentEnv
from environments.policy.rendering.chatml import EMBEDDED, EMBEDDED_TOKENIZER_DIR
from environments.policy.scripted import Choice, Script, generic_summary, say
from environments.policy.second_models import ROLES, ScriptedAnswers
from environments.rollout.agent_loop import opening_messages
from environments.rollout.containment.hook_calls import InFlight
from environments.rollout.context import asks_for_summary
from environments.rollout.hooks import takes_context, writes
from environments.rollout.items.item_json import item_for_record, item_ids
from environments.rollout.items.tasks import GroupTask
from environments.rollout.lifecycle.rollout_hooks import open_rollout
from environments.trajectory import Message
from environments.turn_level_reward import call_hook
from tools.calls import ToolSpec
from tools.errors import ConfigError
from tools.extras import needs_extra
from turnwise.cli.env_command import EnvCall, EnvCommand

if TYPE_CHECKING:
    from environments.policy.mock_server import ServerKind

Opening = tuple[tuple[str, str], ...]


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
    "--kind",
    type=click.Choice(["plain", "vllm", "sglang", "llama.cpp"]),
    default="plain",
    show_default=True,
    help="vllm, sglang, llama.cpp: it says that it is one, and takes token ids where they do.",
)
def command(call: EnvCall, host: str, port: int, *, model: str, role: str, kind: "ServerKind") -> None:
    """Serve an environment's scripted agent as an OpenAI-compatible model.

    ENV is code_debug by default. The first messages of a conversation identify its item; for a judge or a
    user, the texts of the item that the messages quote. The agent's skill is --env.scripted_skill.
    """
    asyncio.run(_serve(call.open(), host, port, model=model, role=role, kind=kind))


async def _serve(env: AgentEnv, host: str, port: int, *, model: str, role: str, kind: "ServerKind") -> None:
    with needs_extra("mock", "mock-model"):
        import uvicorn  # noqa: PLC0415

        from environments.policy.mock_server import MockSettings, mock_app  # noqa: PLC0415
    async with env.loaded():
        app = mock_app(
            await choose_script(env, role),
            skill=env.config.scripted_skill,
            renderer=env.renderer,
            settings=MockSettings(model=model, kind=kind),
        )
        try:
            listening = socket.create_server((host, port))
        except (OSError, OverflowError) as error:
            raise ConfigError(f"cannot listen on {host}:{port}: {error}") from None
        with listening:
            # Printed after listening, so that a reader can connect at once.
            url = f"http://{host}:{listening.getsockname()[1]}/v1"
            what = f"model {model!r}" + ("" if role == "policy" else f", the {role}")
            click.echo(f"{url} plays {len(env.items)} items of {env.name} as {what}; ^C ends")
            if kind != "plain":
                name = env.config.tokenizer_name
                folder = EMBEDDED_TOKENIZER_DIR if name == EMBEDDED else name
                click.echo(f"token ids: --openai.family chatml --env.tokenizer_name {folder}")
            await uvicorn.Server(uvicorn.Config(app, log_level="warning")).serve(sockets=[listening])


async def choose_script(env: AgentEnv, role: str) -> "Callable[[Sequence[Message]], Script | None]":
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
        known = await items_by_opening(env, await call_hook("load_eval_items", env.load_eval_items)) | known
    return partial(script_for, env, known)


async def items_by_opening(env: AgentEnv, items: Sequence[Any] | None = None) -> dict[Opening, Any]:
    items = env.items if items is None else items
    tasks = [GroupTask(item=item, item_id=name) for item, name in zip(items, item_ids(items), strict=True)]
    return {_texts_by_role(await _opening_of(env, task.for_rollout())): task.item for task in tasks}


async def _opening_of(env: AgentEnv, task: GroupTask) -> tuple[Message, ...]:
    """Return the opening messages; a prompt that depends on state needs a prepared sandbox."""
    if not writes(env, "format_prompt"):
        raise ConfigError(
            f"environment {env.name!r} has no format_prompt by which a conversation would show its item: "
            f"write one that gives what its agent begins with"
        )
    with env.lifecycle.hook_calls(InFlight(item_id=task.item_id, sibling=0)) as calls:
        if not takes_context(env.format_prompt, 1):
            prompt = await calls.hook("format_prompt", env.format_prompt, task.item)
            return opening_messages(prompt, system=env.system_prompt, env=env.name)
        async with open_rollout(env.lifecycle, task, 0, calls) as hooks:
            return await hooks.opening()


def script_for(env: AgentEnv, items: Mapping[Opening, Any], messages: Sequence[Message]) -> Script | None:
    """Return the script of the item with the longest matching opening, else the generic summary or None."""
    sums_up = asks_for_summary(messages, env.lifecycle.parts.condensers)
    script = env.scripted_summary if sums_up else env.scripted_choices
    spoken = _texts_by_role(messages)
    for length in sorted({len(opening) for opening in items}, reverse=True):
        if spoken[:length] in items:
            return partial(script, items[spoken[:length]])
    return generic_summary if sums_up else None


def _texts_by_role(messages: Sequence[Message]) -> Opening:
    return tuple((message.role, message.content) for message in messages)


class MockRole:
    def __init__(self, env: AgentEnv, role: str) -> None:
        self._name = f"scripted_{role}"
        self._hook = getattr(env, self._name)
        if not writes(env, self._name):
            raise ConfigError(
                f"environment {env.name!r} plays no {role}; write {self._name}(self, item, messages)"
            )
        self._items = [(item, set(_find_texts(item_for_record(item)))) for item in env.items]

    def script(self, messages: Sequence[Message]) -> Script:
        spoken = "\n".join(message.content for message in messages)
        item, _ = max(self._items, key=lambda each: sum(len(text) for text in each[1] if text in spoken))
        hook = partial(call_hook, self._name, self._hook, item)
        answers = ScriptedAnswers(name=self._name, script=hook)

        async def script(
            messages: Sequence[Message], tools: Sequence[ToolSpec], skill: float
        ) -> Sequence[Choice]:
            answer = await answers.answer(messages, seed=0)
            return [Choice(probability=1.0, message=say(answer.text or ""))]

        return script


def _find_texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in cast("list[Any]", value):
            yield from _find_texts(each)
    elif isinstance(value, dict):
        for each in cast("dict[str, Any]", value).values():
            yield from _find_texts(each)
