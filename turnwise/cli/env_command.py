"""Base of the commands on one environment: the argument ENV, its settings and its help."""

import inspect
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass

import click

from environments.base_env import AgentEnv
from environments.config import (
    BARE,
    AgentEnvConfig,
    ModelServerConfig,
    ServerConfig,
    ServerT,
    server_configs,
    with_keys,
)
from environments.policy.base import Policy
from environments.rollout.hooks import Hooks
from environments.run.console_streams import robust_console
from environments.run.discovery import find_environment
from environments.run.loading import run_code
from environments.run.run_files import COMMAND_LINE, Sources
from environments.turn_level_reward import TurnLevelRewardMixin
from tools.errors import ConfigError
from turnwise.cli.settings import (
    FLAGS,
    SECOND_MODELS,
    SECTIONS,
    Overrides,
    Settings,
    merge_settings,
    own_settings,
    read_yaml,
    setting_help,
    settings_help,
    split_overrides,
)

_USES = {
    "judge": (r"\.judge\b", "asks no judge: nothing calls ctx.judge, and it has no scripted_judge"),
    "user": (r"\bSimulatedUser\b", "has no SimulatedUser, and it has no scripted_user"),
    "summariser": (
        r"by=[\"']model[\"']",
        "has no condenser that a second model plays; choose --env.condenser summarise_by_model",
    ),
}
"""Second models: a pattern in the source of a class that uses one, and the message otherwise."""
_OVERRIDES = "turnwise.overrides"
_PASS_ON = (
    "write `def __init__(self, *args, **kwargs)` with `super().__init__(*args, **kwargs)`, or use "
    "`setup` instead"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvCall:
    env_cls: type[AgentEnv]
    file: Overrides | None
    flags: Overrides

    @property
    def layers(self) -> list[Overrides]:
        return [each for each in (self.file, self.flags) if each is not None]

    def open(self, *, flags: Mapping[str, Any] | None = None) -> AgentEnv:
        """Construct the environment; `flags` are settings by options of the command.

        Raises:
            ConfigError: if a setting is wrong.
        """
        settings = self.settings(flags or {})
        return self.env_of(settings.env, [*settings.servers, *settings.second])

    def env_of(
        self, config: AgentEnvConfig, servers: Sequence[ModelServerConfig], *, policy: Policy | None = None
    ) -> AgentEnv:
        """Construct the environment with these settings and servers.

        Raises:
            ConfigError: if its `__init__` has other arguments, does not pass them on, or raises; or a model
                is named without a server.
        """
        self._refuse_no_server(servers)
        cls, servers = self.env_cls, with_variables(servers)
        own = {} if policy is None else {"policy": policy}
        try:
            inspect.signature(cls).bind(config, servers, **own)
        except TypeError:
            raise ConfigError(f"{cls.__name__}.__init__ takes other arguments; {_PASS_ON}") from None
        file = Path(getattr(sys.modules.get(cls.__module__), "__file__", None) or cls.__module__)
        env = run_code(lambda: cls(config, servers, **own), file)
        if not hasattr(env, "config"):
            raise ConfigError(f"{cls.__name__}.__init__ does not call the one of AgentEnv; {_PASS_ON}")
        return env

    def _refuse_no_server(self, servers: Sequence[ModelServerConfig]) -> None:
        # Otherwise the script would replace the model unnoticed.
        there = {"env", *(server.section for server in servers if server.base_url)}
        for section in [each for each in self.flags.sections if each not in there]:
            for name in ("model_name", "temperature", "top_p"):
                if name in self.flags.of(section):
                    raise ConfigError(
                        f"--{section}.{name} is for a model server, and none is named; give "
                        f"--{section}.base_url, such as http://localhost:8000/v1"
                    )

    def sources(self) -> Sources:
        sources: dict[str, str] = {}
        for layer in self.layers:
            origin = Path(layer.origin).name if layer.origin else COMMAND_LINE
            for section in layer.sections:
                for names in layer.each_of(section):
                    sources |= {f"{section}.{name.partition('.')[0]}": origin for name in names}
        return sources

    def settings(self, flags: Mapping[str, Any]) -> Settings:
        given = {name: value for name, value in flags.items() if value is not None}
        command_line = replace(
            self.flags, sections={**self.flags.sections, "env": {**self.flags.of("env"), **given}}
        )
        settings = merge_settings(own_settings(self.env_cls), self.file, command_line)
        for layer in filter(None, (self.file, command_line)):
            for section, (_, instead) in _USES.items():
                if section in layer.sections and not uses(self.env_cls, section, settings.env):
                    flag = SECTIONS[section][0].label(next(iter(layer.of(section))), layer.origin)
                    raise ConfigError(f"{flag}: environment {self.env_cls.name!r} {instead}")
        return settings


def uses(env_cls: type[AgentEnv], section: str, config: AgentEnvConfig) -> bool:
    """Whether a class uses a second model: it has a script or a server for it, or calls it."""
    hook = f"scripted_{section}"
    if getattr(env_cls, hook) is not getattr(Hooks, hook):
        return True
    if section == "summariser" and "summarise_by_model" in (config.condenser or ()):
        return True
    if any(server.section == section for server in server_configs(own_settings(env_cls)[1])):
        return True
    own = [cls for cls in env_cls.__mro__ if cls not in TurnLevelRewardMixin.__mro__ + AgentEnv.__mro__]
    pattern = _USES[section][0]
    try:
        return any(re.search(pattern, inspect.getsource(sys.modules[cls.__module__])) for cls in own)
    except (OSError, TypeError, KeyError):
        return True  # the source of a notebook's class is unknown


def _set_gamma(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    flags: Overrides = ctx.meta[_OVERRIDES]
    if value is not None:
        env = {**flags.of("env"), "estimator_params.gamma": value}
        ctx.meta[_OVERRIDES] = replace(flags, sections={**flags.sections, "env": env})


class EnvCommand(click.Command):
    """A command that passes an `EnvCall` to its function.

    Under `MyEnv.cli()` the context's object is the class, and there is no argument ENV.
    """

    def __init__(
        self, *args: Any, default_env: str | None = None, env_is_option: bool = False, **options: Any
    ) -> None:
        super().__init__(*args, add_help_option=False, **options)
        self._default_env = default_env
        metavar = "ENV" if default_env is None else "[ENV]"
        named: click.Parameter = click.Argument(["env"], required=False, metavar=metavar)
        if env_is_option:
            named = click.Option(["--env"], metavar="ENV", help="The environment.")
        sections = ", ".join(f"`{name}:`" for name in SECTIONS)
        self.params = [
            named,
            click.Option(["--config"], metavar="FILE", help=f"YAML file with settings: {sections}."),
            *self.params,
            click.Option(["--help"], is_flag=True, help="Show this message; with ENV, its settings too."),
        ]

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [param for param in super().get_params(ctx) if param.name != "env" or ctx.obj is None]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_OVERRIDES], rest = split_overrides(args)
        try:
            return super().parse_args(ctx, rest)
        except click.NoSuchOption as error:
            meant = f"; did you mean {error.possibilities[0]}?" if error.possibilities else ""
            raise ConfigError(f"no option {error.option_name}{meant}; settings are {FLAGS}") from None

    def invoke(self, ctx: click.Context) -> Any:
        options = dict(ctx.params)
        given, config = options.pop("env", None), options.pop("config")
        shown = self._full_help(ctx, given) if options.pop("help") else self._setting_help(ctx, given)
        if shown is not None:
            click.echo(shown)
            return 0
        call = EnvCall(
            env_cls=self._env_class(ctx, given),
            file=None if config is None else read_yaml(Path(config)),
            flags=ctx.meta[_OVERRIDES],
        )
        assert self.callback is not None
        with robust_console():
            return ctx.invoke(self.callback, call, **options)

    def _env_class(self, ctx: click.Context, given: str | None) -> type[AgentEnv]:
        if ctx.obj is not None:
            return ctx.obj
        given = given or self._default_env
        if given is None:
            raise click.UsageError("no environment given; `turnwise list` names those that are shipped", ctx)
        return find_environment(given)

    def _full_help(self, ctx: click.Context, given: str | None) -> str:
        text = self.get_help(ctx)
        if ctx.obj is None and given is None:
            return (
                f"{text}\n\nGive ENV with --help to see its settings; --env.help NAME explains one of them, "
                "also without ENV."
            )
        env_cls = self._env_class(ctx, given)
        config, _ = own_settings(env_cls)
        second = [each() for each in SECOND_MODELS if uses(env_cls, each.section, config)]
        return f"{text}\n\n{settings_help(config, env_cls.name, [ServerConfig(), *second])}"

    def _setting_help(self, ctx: click.Context, given: str | None) -> str | None:
        flags: Overrides = ctx.meta[_OVERRIDES]
        section = next((each for each, values in flags.sections.items() if "help" in values), None)
        if section is None:
            return None
        name = flags.of(section)["help"]
        if name is BARE:
            raise ConfigError(f"--{section}.help explains one setting; give its name, --{section}.help NAME")
        config, estimator = AgentEnvConfig(), flags.of("env").get("estimator")
        if ctx.obj is not None or given is not None:
            env_cls = self._env_class(ctx, given)
            config, _ = own_settings(env_cls)
            estimator = estimator or config.estimator or env_cls.default_estimator
        explained = config if section == "env" else SECTIONS[section][0]()
        return setting_help(explained, name, estimator=estimator or "turn_return")


def with_variables(servers: Sequence[ServerT]) -> list[ServerT]:
    """Return the servers with keys and proxies of the process environment."""
    return with_proxies(with_keys(servers, os.environ))


def with_proxies(servers: Sequence[ServerT]) -> list[ServerT]:
    """Set the proxy of the servers by `http_proxy` and similar variables, unless a setting names one."""
    return [
        server.model_copy(update={"proxy": _proxy_for(server.base_url)})
        if server.base_url and server.proxy is None
        else server
        for server in servers
    ]


def _proxy_for(url: str) -> str:
    proxies = getproxies_environment()
    try:
        parts = urlsplit(url)
    except ValueError:
        return "none"  # the policy refuses the URL
    named = proxies.get(parts.scheme) or proxies.get("all")
    if not named or proxy_bypass(parts.netloc.rpartition("@")[2]) or _is_within(parts.hostname, proxies):
        return "none"
    return named if "://" in named else f"http://{named}"


def _is_within(host: str | None, proxies: dict[str, str]) -> bool:
    """Whether `no_proxy` has the network (`10.0.0.0/8`) or IPv6 address of a host; urllib ignores both."""
    for name in proxies.get("no", "").split(","):
        try:
            if ip_address(host or "") in ip_network(name.strip().strip("[]"), strict=False):
                return True
        except ValueError:
            continue
    return False


gamma_option = click.option(
    "--gamma",
    metavar="X",
    help="The discount per turn: --env.estimator_params.gamma.",
    callback=_set_gamma,
    expose_value=False,
)
