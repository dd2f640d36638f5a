"""Base of the commands on one environment: the argument ENV, its settings and its help."""

import inspect
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass

import click
from click.shell_completion import CompletionItem

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
from environments.credit import ESTIMATORS
from environments.policy.base import Policy
from environments.rollout.hooks import Hooks
from environments.run.console_streams import robust_console
from environments.run.discovery import find_environment
from environments.run.loading import SHIPPED, run_code
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
    "reference": (r"by=[\"']reference[\"']", "asks no reference: nothing calls ctx.policy_logprob(by=…)"),
}
"""Second models: a pattern in the source of a class that uses one, and the message otherwise."""
OVERRIDES, _LAST = "turnwise.overrides", "turnwise.last_argument"
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
        """Construct the environment; `flags` are settings by name, given by options such as `--out`.

        Raises:
            ConfigError: if a setting is wrong.
        """
        for name, value in (flags or {}).items():
            if value is not None:
                _refuse_two_values(f"env.{name}", self.flags, value, "--out")
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
        # Otherwise the script would replace the model unnoticed.
        there = {"env", *(server.section for server in servers if server.base_url)}
        for section in [each for each in self.flags.sections if each not in there]:
            for name in ("model_name", "temperature", "top_p"):
                if name in self.flags.of(section):
                    raise ConfigError(
                        f"--{section}.{name} is for a model server, and none is named; give "
                        f"--{section}.base_url, such as http://localhost:8000/v1"
                    )
        cls, servers, config = self.env_cls, with_variables(servers), config.with_variables(os.environ)
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
    if getattr(env_cls, hook, None) is not getattr(Hooks, hook, None):
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


def _setting_option(setting: str, names: Sequence[str], metavar: str, what: str) -> click.Option:
    """Return another name for a setting, such as `-r` for `--env.group_size`."""
    section, _, name = setting.partition(".")

    def set_it(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
        flags: Overrides = ctx.meta[OVERRIDES]
        if value is not None:
            _refuse_two_values(setting, flags, value, names[0])
            sections = {**flags.sections, section: {**flags.of(section), name: value}}
            ctx.meta[OVERRIDES] = replace(flags, sections=sections)

    return click.Option(
        list(names), metavar=metavar, help=f"{what}: --{setting}.", callback=set_it, expose_value=False
    )


def _refuse_two_values(setting: str, flags: Overrides, value: str, option: str) -> None:
    section, _, name = setting.partition(".")
    if flags.of(section).get(name, value) != value:
        other = flags.of(section)[name]
        raise ConfigError(f"{option} {value!r:.100} is --{setting}, which is given as {other!r:.100}, too")


_SETTINGS = (
    ("openai.model_name", ("-m", "--model"), "NAME", "The model on the server"),
    ("env.max_items", ("-n", "--max-items"), "N", "Only the first items"),
    ("env.group_size", ("-r", "--group-size"), "N", "Rollouts of an item"),
    ("env.estimator_params.gamma", ("--gamma",), "X", "The discount per turn"),
)


def _complete_env(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in SHIPPED if name.startswith(incomplete)]


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
        named: click.Parameter = click.Argument(
            ["env"], required=False, metavar=metavar, shell_complete=_complete_env
        )
        if env_is_option:
            named = click.Option(["--env"], metavar="ENV", help="The environment.")
        sections = ", ".join(f"`{name}:`" for name in SECTIONS)
        self.params = [
            named,
            click.Option(["--config"], metavar="FILE", help=f"YAML file with settings: {sections}."),
            *self.params,
            click.Option(
                ["--help"],
                is_flag=False,
                flag_value="",
                metavar="[all]",
                help="Show this; with ENV, also the settings that matter first, or all.",
            ),
        ]

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [param for param in super().get_params(ctx) if param.name != "env" or ctx.obj is None]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[OVERRIDES], rest = split_overrides(args)
        ctx.meta[_LAST] = args[-1] if args else ""
        try:
            return super().parse_args(ctx, rest)
        except click.NoSuchOption as error:
            meant = f"; did you mean {error.possibilities[0]}?" if error.possibilities else ""
            raise ConfigError(f"no option {error.option_name}{meant}; settings are {FLAGS}") from None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        settings = {
            f"--{name}.{field}": of for name, (of, _) in SECTIONS.items() for field in of.model_fields
        }
        if (last := ctx.meta[_LAST]) in settings:
            words = (
                ESTIMATORS if last == "--env.estimator" else settings[last].choices(last.partition(".")[2])
            )
            own = [each for each in words if each.startswith(incomplete)]
            return [CompletionItem(each) for each in own] or [CompletionItem(incomplete, type="file")]
        own = [each for each in settings if "." in incomplete and each.startswith(incomplete)]
        return [*map(CompletionItem, own)] or super().shell_complete(ctx, incomplete)

    def invoke(self, ctx: click.Context) -> Any:
        options = dict(ctx.params)
        given, config = options.pop("env", None), options.pop("config")
        if (wanted := options.pop("help")) not in (None, "", "all"):
            given, wanted = given or wanted, ""  # --help ENV
        shown = self._setting_help(ctx, given) if wanted is None else self._full_help(ctx, given, wanted)
        if shown is not None:
            click.echo(shown)
            return 0
        call = EnvCall(
            env_cls=self._env_class(ctx, given),
            file=None if config is None else read_yaml(Path(config)),
            flags=ctx.meta[OVERRIDES],
        )
        assert self.callback is not None
        with robust_console():
            return ctx.invoke(self.callback, call, **options)

    def is_help(self, ctx: click.Context) -> bool:
        settings = ctx.meta[OVERRIDES].sections.values()
        return ctx.params["help"] is not None or any("help" in values for values in settings)

    def _env_class(self, ctx: click.Context, given: str | None) -> type[AgentEnv]:
        if ctx.obj is not None:
            return ctx.obj
        given = given or self._default_env
        if given is None:
            raise click.UsageError("no environment given; `turnwise list` names those that are shipped", ctx)
        return find_environment(given)

    def _full_help(self, ctx: click.Context, given: str | None, wanted: str) -> str:
        text = self.get_help(ctx)
        if ctx.obj is None and given is None:
            return (
                f"{text}\n\nGive ENV with --help to see its settings; --env.help NAME explains one of them, "
                "also without ENV."
            )
        env_cls = self._env_class(ctx, given)
        config, _ = own_settings(env_cls)
        second = [each() for each in SECOND_MODELS if uses(env_cls, each.section, config)]
        servers = [ServerConfig(), *second]
        return f"{text}\n\n{settings_help(config, env_cls.name, servers, every=wanted == 'all')}"

    def _setting_help(self, ctx: click.Context, given: str | None) -> str | None:
        flags: Overrides = ctx.meta[OVERRIDES]
        section = next((each for each, values in flags.sections.items() if "help" in values), None)
        if section is None:
            return None
        name = flags.of(section)["help"]
        if name is BARE:
            raise ConfigError(f"--{section}.help explains one setting; give its name, --{section}.help NAME")
        if (named := name.removeprefix("--").partition("."))[0] in SECTIONS and named[1]:
            section, _, name = named
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


Command = TypeVar("Command", bound=click.Command)


def with_setting_options(command: Command) -> Command:
    """Add other names of the settings that runs need most."""
    command.params += [_setting_option(*each) for each in _SETTINGS]
    return command
