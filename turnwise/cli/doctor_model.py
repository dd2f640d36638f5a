"""`turnwise doctor model`: a short conversation with a model server, and a table of its abilities."""

import asyncio
import json
import logging
import shlex

import click

from environments.config import AgentEnvConfig, ServerConfig
from environments.policy.inference.model_server import ModelServer
from environments.policy.inference.server_kind import check_server
from environments.policy.rendering.chatml import EMBEDDED, Renderer, load_tokenizer
from environments.policy.rendering.families import (
    TEXT_FAMILIES,
    family_names,
    load_renderer,
    validate_family,
)
from tools.errors import ConfigError
from tools.plain_text import one_line, public_url
from turnwise.cli.env_command import with_variables
from turnwise.cli.settings import Overrides, Settings, merge_settings, split_overrides
from turnwise.lab.model_check import CheckedModel, ModelCheck, Verdict, check_model

_STYLES: dict[Verdict, str] = {"ok": "green", "no": "red", "not seen": "yellow"}
_FLAGS = "turnwise.doctor.flags"
_SECRETS = frozenset({"api_key", "proxy"})
_DECIDED = frozenset({"base_url", "model_name", "server_type", "family"})


class _WithSettings(click.Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_FLAGS], rest = split_overrides(args)
        return super().parse_args(ctx, rest)


@click.command("model", cls=_WithSettings)
@click.argument("url", required=False)
@click.option("--model", "model_name", help="The model to ask for; needed where the server has several.")
@click.option("--api-key", help="The server's key.")
@click.option(
    "--tokenizer",
    "tokenizer_name",
    metavar="NAME",
    help="The model's tokenizer: a folder or a Hugging Face name.",
)
@click.option("--family", metavar="NAME", help="Its chat format; unset: by the model's name.")
@click.option("--families", "list_families", is_flag=True, help="Name the chat formats, and nothing else.")
@click.pass_context
def command(ctx: click.Context, url: str | None, list_families: bool, **options: str | None) -> int:
    """Find out what the model server at URL gives: token ids, logprobs, tool calls, and what to set.

    It gets about ten requests. Other settings are those of a run, --openai.NAME and --env.NAME.
    Exits with 0 when a run can use it, with tokens or with text alone; the last lines say which.
    """
    if list_families:
        for name in family_names():
            click.echo(f"{name:<17} calls in text alone, no token ids" if name in TEXT_FAMILIES else name)
        return 0
    settings = _merge(ctx.meta[_FLAGS], {"base_url": url, **options})
    if not settings.servers[0].base_url:
        raise click.UsageError("no URL given, for example http://localhost:8000/v1", ctx)
    found, more = asyncio.run(_examine(settings))
    _show(found, more)
    base_url = settings.servers[0].base_url
    if found.flags and public_url(base_url) != base_url:
        click.echo("Of the URL, user, password and query are left out: add your own.")
    return 1 if found.tokens == "none" else 0


def _merge(flags: Overrides, options: dict[str, str | None]) -> Settings:
    given = {name: value for name, value in options.items() if value is not None}
    tokenizer = {name: given.pop(name) for name in ("tokenizer_name",) if name in given}
    if other := flags.sections.keys() - {"env", "openai"}:
        raise ConfigError(
            f"doctor model looks at one server; give its settings as --openai.NAME, not as "
            f"--{min(other)}.NAME"
        )
    sections = {"env": {**flags.of("env"), **tokenizer}, "openai": {**flags.of("openai"), **given}}
    return merge_settings((AgentEnvConfig(), [ServerConfig()]), None, Overrides(sections=sections))


async def _examine(settings: Settings) -> tuple[ModelCheck, list[str]]:
    config, (given,) = settings.env, with_variables(settings.servers)
    server = ModelServer(
        base_url=str(given.base_url),
        api_key=given.api_key or "none",
        request_timeout_s=config.request_timeout_s,
        tries=2,
        proxy=given.proxy,
        key_name=given.api_key_env or "",
    )
    logger = logging.getLogger("environments.policy")
    try:
        model = await check_server(server, given.model_name)
        tokenizer = None if config.tokenizer_name == EMBEDDED else load_tokenizer(config.tokenizer_name)
        renderer, why_not = _load_renderer(given, model, config.tokenizer_name)
        click.echo(
            f"asking {one_line(model)} for about ten replies, of up to 1,024 tokens and "
            f"{config.request_timeout_s:g} s (--env.request_timeout_s)",
            err=True,
        )
        checked = CheckedModel(
            server=server,
            model=model,
            settings=given,
            renderer=renderer,
            no_renderer=why_not,
            tokenizer=tokenizer,
            tokenizer_name=config.tokenizer_name,
        )
        logger.setLevel(logging.ERROR)  # warnings of policies are findings here
        return await check_model(checked), _own_flags(settings.servers[0])
    finally:
        logger.setLevel(logging.NOTSET)
        await server.aclose()


def _load_renderer(given: ServerConfig, model: str, tokenizer_name: str) -> tuple[Renderer | None, str]:
    """Return (renderer for a named tokenizer, reason if none fits)."""
    if given.family is not None:
        validate_family(given.family)
    if tokenizer_name == EMBEDDED:
        return None, ""  # the default, which no model uses
    try:
        return load_renderer(
            family=given.family, model_name=model, tokenizer_name=tokenizer_name, tools=given.tools
        ), ""
    except ConfigError as error:
        return None, str(error)


def _own_flags(given: ServerConfig) -> list[str]:
    """Return flags for the user's other settings, with placeholders for secrets."""
    flags: list[str] = []
    for name, field in ServerConfig.model_fields.items():
        value = getattr(given, name)
        if name in _DECIDED or value == field.default:
            continue
        if name == "extra_body":
            flags += [f"--openai.extra_body.{key} {shlex.quote(json.dumps(value[key]))}" for key in value]
        else:
            flags.append(f"--openai.{name} {'YOUR_OWN' if name in _SECRETS else shlex.quote(str(value))}")
    return flags


def _show(found: ModelCheck, more: list[str]) -> None:
    width = max(len(each.name) for each in found.findings)
    for each in found.findings:
        verdict = click.style(f"{each.verdict:<8}", fg=_STYLES[each.verdict])
        click.echo(f"{each.name:<{width}}  {verdict}  {one_line(each.seen)}")
        if each.advice and each.verdict != "ok":
            click.echo(f"{'':<{width + 12}}→ {one_line(each.advice)}")
    click.echo(f"\n{one_line(found.conclusion)}")
    if found.flags:
        click.echo(" \\\n  ".join(["turnwise process ENV", *found.flags, *more]))
