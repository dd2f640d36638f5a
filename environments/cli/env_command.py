"""What every command on an environment shares: the ENV argument, --config, dotted settings and their help."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Any, cast

import click
from pydantic import ValidationError

from environments.base_env import AgentEnv
from environments.cli.proxies import with_proxies
from environments.cli.settings import (
    BARE,
    Overrides,
    Settings,
    merge_settings,
    read_yaml,
    setting_sources,
    split_overrides,
)
from environments.cli.settings_help import setting_help, settings_help
from environments.config import AgentEnvConfig
from environments.policy.base import Policy
from environments.run.console_streams import outlived_console
from environments.run.discovery import find_environment
from environments.run.loading import run_code
from environments.run.run_files import Sources
from environments.server_config import (
    JudgeConfig,
    ModelServerConfig,
    ServerConfig,
    SummariserConfig,
    UserConfig,
)
from tools.errors import ConfigError

_OVERRIDES = "turnwise.overrides"
_HAND_ON = (
    "write `def __init__(self, *args, **kwargs)` with `super().__init__(*args, **kwargs)`, or use "
    "`setup` instead"
)
_SERVERS = (
    ("Model server", ServerConfig()),
    ("Model server of the judge", JudgeConfig()),
    ("Model server of the simulated user", UserConfig()),
    ("Model server of the summariser", SummariserConfig()),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvCall:
    """An environment and the settings that the user gave for it."""

    env_cls: type[AgentEnv]
    file: Overrides | None
    flags: Overrides

    def open(
        self,
        *,
        flags: Mapping[str, Any] | None = None,
        evaluation: bool = False,
    ) -> AgentEnv:
        """The environment with its settings.

        Args:
            flags: settings that the command's own options stand for; they win.
            evaluation: whether evaluation's settings stand in the place of training's.

        Raises:
            ConfigError: a setting is wrong.
        """
        settings = self.settings(flags or {})
        config = settings.env.for_evaluation() if evaluation else settings.env
        return self.env_of(config, [*settings.servers, *settings.second])

    def env_of(
        self, config: AgentEnvConfig, servers: Sequence[ModelServerConfig], *, policy: Policy | None = None
    ) -> AgentEnv:
        """The environment with these settings and servers, and a policy that plays in their place.

        Raises:
            ConfigError: its `__init__` takes other arguments, does not hand them on, or breaks; or a model
                is named, and no server.
        """
        self._refuse_no_server(servers)
        cls, servers = self.env_cls, with_proxies(servers)
        own = {} if policy is None else {"policy": policy}
        try:
            signature(cls).bind(config, servers, **own)
        except TypeError:
            raise ConfigError(f"{cls.__name__}.__init__ takes other arguments; {_HAND_ON}") from None
        file = Path(getattr(sys.modules.get(cls.__module__), "__file__", None) or cls.__module__)
        env = run_code(lambda: cls(config, servers, **own), file)
        if not hasattr(env, "config"):
            raise ConfigError(f"{cls.__name__}.__init__ does not call the one of AgentEnv; {_HAND_ON}")
        return env

    def _refuse_no_server(self, servers: Sequence[ModelServerConfig]) -> None:
        # A script would play in the place of the model, and nothing in the record would look wrong.
        there = {server.section for server in servers if server.base_url}
        flags = {"openai": self.flags.openai, **self.flags.second}
        for section, given in flags.items():
            if "model_name" in given and section not in there:
                raise ConfigError(
                    f"--{section}.model_name names a model and nothing says where it is; give "
                    f"--{section}.base_url, such as http://localhost:8000/v1"
                )

    def sources(self) -> Sources:
        """Where settings came from that the class does not give."""
        return setting_sources(self.file, self.flags)

    def settings(self, flags: Mapping[str, Any]) -> Settings:
        """The settings alone, checked."""
        given = {name: value for name, value in flags.items() if value is not None}
        return merge_settings(
            own_settings(self.env_cls),
            self.file,
            replace(self.flags, env={**self.flags.env, **given}),
        )


class EnvCommand(click.Command):
    """A command whose function gets an `EnvCall` before its own options.

    Under `MyEnv.cli()` the context's object is the class, and there is no ENV argument.
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
        self.params = [
            named,
            click.Option(
                ["--config"],
                metavar="FILE",
                help="YAML file with `env:`, `openai:`, `judge:`, `user:` and `summariser:` settings.",
            ),
            *self.params,
            click.Option(["--help"], is_flag=True, help="Show this message; with ENV, its settings too."),
        ]

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The parameters; no ENV when the class is already known."""
        return [param for param in super().get_params(ctx) if param.name != "env" or ctx.obj is None]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the dotted settings out before click sees the rest."""
        ctx.meta[_OVERRIDES], rest = split_overrides(args)
        try:
            return super().parse_args(ctx, rest)
        except click.NoSuchOption as error:
            meant = f"; did you mean {error.possibilities[0]}?" if error.possibilities else ""
            raise ConfigError(
                f"no option {error.option_name}{meant}; settings of the environment are --env.NAME, "
                f"those of model servers --openai.NAME, --judge.NAME, --user.NAME and --summariser.NAME"
            ) from None

    def invoke(self, ctx: click.Context) -> Any:
        """Find the environment, then run; or show help."""
        options = dict(ctx.params)
        given, config = options.pop("env", None), options.pop("config")
        if options.pop("help"):
            click.echo(self._full_help(ctx, given))
            return 0
        if (explained := self._setting_help(ctx, given)) is not None:
            click.echo(explained)
            return 0
        call = EnvCall(
            env_cls=self._env_class(ctx, given),
            file=None if config is None else read_yaml(Path(config)),
            flags=ctx.meta[_OVERRIDES],
        )
        assert self.callback is not None
        with outlived_console():
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
        return f"{text}\n\n{settings_help(config, env_cls.name, _SERVERS)}"

    def _setting_help(self, ctx: click.Context, given: str | None) -> str | None:
        """What `--env.help NAME` asks for, of any section; `None`: nothing is asked."""
        flags: Overrides = ctx.meta[_OVERRIDES]
        asked = {"env": flags.env, "openai": cast("Mapping[str, Any]", flags.openai), **flags.second}
        section = next((name for name, values in asked.items() if "help" in values), None)
        if section is None:
            return None
        config, estimator = AgentEnvConfig(), asked["env"].get("estimator")
        if ctx.obj is not None or given is not None:
            env_cls = self._env_class(ctx, given)
            config, _ = own_settings(env_cls)
            estimator = estimator or config.estimator or env_cls.default_estimator
        name = asked[section]["help"]
        if name is BARE:
            raise ConfigError(f"--{section}.help explains one setting; give its name, --{section}.help NAME")
        sections = {"env": config, **{each.section: each for _, each in _SERVERS}}
        return setting_help(sections[section], name, estimator=estimator or "turn_return")


def own_settings(env_cls: type[AgentEnv]) -> tuple[AgentEnvConfig, Any]:
    """What the class's `config_init` gives: its config, and its server config or configs.

    Raises:
        ConfigError: it gives something else, or a setting in it is wrong.
    """
    try:
        given: Any = env_cls.config_init()
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise ConfigError(
            f"{env_cls.__name__}.config_init: {where} {problem['msg']}".replace("  ", " ")
        ) from None
    if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], AgentEnvConfig)):  # pyright: ignore[reportUnknownArgumentType]  # user code
        raise ConfigError(
            f"{env_cls.__name__}.config_init gave {given!r:.200}; give (AgentEnvConfig(…), [ServerConfig(…)])"
        )
    return cast("tuple[AgentEnvConfig, Any]", given)
