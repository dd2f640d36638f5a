"""Settings from the command line and from YAML: CLI over YAML over class defaults, errors in one line."""

import difflib
import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_address, ip_network
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass

import click
import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from environments.base_env import AgentEnv
from environments.config import (
    SETTING_GROUPS,
    AgentEnvConfig,
    JudgeConfig,
    ModelServerConfig,
    SecondModelConfig,
    Section,
    ServerConfig,
    SummariserConfig,
    UserConfig,
    server_configs,
)
from environments.credit import describe
from environments.policy.base import Policy
from environments.policy.inference.endpoint import without_credentials
from environments.rollout.hooks import Hooks
from environments.run.console_streams import outlived_console
from environments.run.discovery import find_environment
from environments.run.loading import run_code
from environments.run.run_files import COMMAND_LINE, Sources
from environments.turn_level_reward import TurnLevelRewardMixin
from tools.errors import ConfigError
from tools.json_input import JsonError, read_exact_json

SECOND_MODELS: tuple[type[SecondModelConfig], ...] = (JudgeConfig, UserConfig, SummariserConfig)
_SECTIONS: Mapping[str, tuple[type[Section], str]] = {
    "env": (AgentEnvConfig, ""),
    "openai": (ServerConfig, "Model server"),
    "judge": (JudgeConfig, "Model server of the judge"),
    "user": (UserConfig, "Model server of the simulated user"),
    "summariser": (SummariserConfig, "Model server of the summariser"),
}
_FLAGS = ", ".join(f"--{name}.NAME" for name in _SECTIONS)
_USES = {
    "judge": (r"\.judge\b", "asks no judge: nothing calls ctx.judge, and it has no scripted_judge"),
    "user": (r"\bSimulatedUser\b", "has no SimulatedUser, and it has no scripted_user"),
    "summariser": (
        r"by=[\"']model[\"']",
        "has no condenser that a second model plays; choose --env.condenser summarise_by_model",
    ),
}
"""What the source of a class has that uses a second model without a hook that plays it, and what if not."""
_ATROPOS_SWITCHES = ("slurm", "testing")
_OFF = {"false", "none", "0", "no", "off"}
_SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
_KINDS = {int: "whole number", float: "number", bool: "true or false", str: "text", NoneType: "None"}
_WIDTH = 80
_NAME_WIDTH = 34
_OVERRIDES = "turnwise.overrides"
_PASS_ON = (
    "write `def __init__(self, *args, **kwargs)` with `super().__init__(*args, **kwargs)`, or use "
    "`setup` instead"
)
BARE = True
"""The value of a flag that stands alone."""
FIRST = (
    "env.group_size", "env.max_items", "env.dataset_path", "openai.base_url", "openai.model_name",
    "env.scripted_skill", "env.max_turns", "env.max_concurrent_rollouts", "env.sandbox", "env.estimator",
)  # fmt: skip
"""The ten settings of a first run."""

Config = TypeVar("Config", bound=Section)
ServerT = TypeVar("ServerT", bound=ModelServerConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """The values that the command line or one file gives, by section and name."""

    sections: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Those that have any. In a file `openai` may be a list of servers."""
    origin: str = ""
    """The YAML file; empty for the command line."""

    def of(self, section: str) -> Any:
        """The values of one section, by name."""
        return self.sections.get(section, {})

    def each_of(self, section: str) -> list[Mapping[str, Any]]:
        """The values of each server that a section names; of other sections one."""
        given: Any = self.of(section)
        return cast("list[Mapping[str, Any]]", given if isinstance(given, list) else [given])

    def label(self, section: str, name: str) -> str:
        """A setting as it was written."""
        return f"{section}.{name} in {self.origin}" if self.origin else f"--{section}.{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings that an environment is constructed with."""

    env: AgentEnvConfig
    servers: list[ServerConfig]
    """One without a `base_url` stands for the scripted agent."""
    second: list[SecondModelConfig] = field(default_factory=list[SecondModelConfig])
    """One without a `base_url` stands for the hook that plays it."""


class _StandsTwiceError(yaml.MarkedYAMLError):
    """The name of a setting, and not what PyYAML quotes."""


class _StrictLoader(yaml.SafeLoader):
    """PyYAML's, but a key that stands twice in a mapping is refused: the first value would be lost."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    problem = f"{key.value!r} stands twice"
                    raise _StandsTwiceError(problem=problem, problem_mark=key.start_mark)
                seen.add(key.value)
        return node


def split_overrides(args: Sequence[str]) -> tuple[Overrides, list[str]]:
    """Take the dotted flags out of a command line; the rest keeps its order.

    `--env.name value`, `--env.name=value` and a bare `--env.name` (true) are understood, and
    `--env.name.key value` for an entry of a mapping; a value that itself starts with `--` needs the `=`.
    The last of two equal flags wins. Values stay text.

    Raises:
        ConfigError: a dotted flag of another section.
    """
    found: dict[str, dict[str, Any]] = {section: {} for section in _SECTIONS}
    rest: list[str] = []
    position = 0
    while position < len(args):
        flag, equals, value = args[position].partition("=")
        section, dot, name = flag.removeprefix("--").partition(".")
        position += 1
        if not (flag.startswith("--") and dot and section.isidentifier()):
            rest.append(args[position - 1])
        elif section not in found:
            raise ConfigError(f"no option {flag}; settings are {_FLAGS}")
        elif equals:
            found[section][name] = value
        elif position < len(args) and not args[position].startswith("--"):
            found[section][name] = args[position]
            position += 1
        else:
            found[section][name] = BARE
    return Overrides(sections={section: values for section, values in found.items() if values}), rest


def read_yaml(path: Path) -> Overrides:
    """The mappings `env:`, `openai:` (or a list of servers), `judge:`, `user:`, `summariser:` of a file.

    Atropos' top-level `slurm` and `testing` may stand there when they are off.

    Raises:
        ConfigError: unreadable, not YAML, or of another shape.
    """
    try:
        content: object = yaml.load(path.read_text(encoding="utf-8"), _StrictLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read --config {path}: {error}") from None
    except _YAML_ERRORS as error:
        raise ConfigError(f"--config {path} is not YAML: {_yaml_problem(error)}") from None
    found: dict[str, Any] = {}
    for key, value in _mapping(content or {}, str(path)).items():
        if key in _ATROPOS_SWITCHES and str(value).lower() in _OFF:
            continue
        if key not in _SECTIONS:
            raise ConfigError(f"no section {key!r} in {path}{nearest(key, _SECTIONS)}")
        if key == "openai" and isinstance(value, list):
            servers = cast("list[object]", value)
            found[key] = [_mapping(server, f"a server of openai in {path}") for server in servers]
        elif value:
            found[key] = _mapping(value, f"{key} in {path}")
    return Overrides(sections=found, origin=str(path))


_YAML_ERRORS = (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""PyYAML lets those of a value through that is not what its tag says, or what it looks like: `2026-13-45`."""


def _yaml_problem(error: Exception) -> str:
    """What is wrong and where, without the line itself, or words of it: they may be a key."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if problem and not isinstance(error, _StandsTwiceError):
        problem = re.sub("'(?!<).{3,}'", "'…'", problem)
    place = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
    return f"{problem or 'it cannot be read'}{place}"


def _mapping(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where} must be a mapping of names to values, got a {type(value).__name__}")
    return {str(key): entry for key, entry in cast("dict[Any, Any]", value).items()}


def merge_settings(
    defaults: tuple[BaseModel, Any], file: Overrides | None, command_line: Overrides
) -> Settings:
    """Command line over file over the defaults that `config_init` gave.

    Args:
        defaults: the environment's config, and its server config or configs.
        file: from `read_yaml`.
        command_line: from `split_overrides`.

    Raises:
        ConfigError: an unknown name, a value of the wrong kind or out of range.
    """
    config, servers = cast("tuple[AgentEnvConfig, Any]", defaults)
    layers = [each for each in (file, command_line) if each is not None]
    for layer in layers:
        config = _merged(config, layer, layer.of("env"))
    known = server_configs(servers)
    second: list[SecondModelConfig] = []
    for section in SECOND_MODELS:
        server = next((each for each in known if isinstance(each, section)), None)
        for layer in layers:
            if section.section in layer.sections:
                server = _merged(server or section(), layer, layer.of(section.section))
        second += [] if server is None else [server]
    policies = [each for each in known if isinstance(each, ServerConfig)] or [ServerConfig()]
    if file is not None and file.of("openai"):
        policies = [_merged(policies[0], file, each) for each in file.each_of("openai")]
    flags = command_line.of("openai")
    if len(policies) > 1 and "base_url" in flags:
        raise ConfigError(
            f"--openai.base_url names one server, but {len(policies)} are configured; give them in --config"
        )
    return Settings(
        env=config, servers=[_merged(each, command_line, flags) for each in policies], second=second
    )


def _merged(base: Config, layer: Overrides, given: Mapping[str, Any]) -> Config:
    """The settings with other values over them, entry by entry in a mapping."""
    section = type(base)
    is_flag = not layer.origin
    values, labels = dict[str, Any](base), dict[str, str]()
    for written, value in given.items():
        name, dot, key = written.partition(".")
        label = labels[name] = layer.label(section.section, written)
        info = section.model_fields.get(name)
        has_entries = info is not None and get_origin(info.annotation) is dict
        known = has_entries and key if dot else info is not None or name in section.without_effect
        if not known:
            raise ConfigError(f"no setting {label}{_meant(written, section, layer.origin)}")
        if dot:
            value = {key: _entry(value, is_json=is_flag and name == "extra_body")}
        elif info is not None:
            value = _from_text(info, value, label, is_flag=is_flag)
        if dot or name in section.by_entry:
            before: Mapping[str, Any] = values[name] or {}
            value = {**before, **_mapping(value or {}, label)}
        values[name] = value
    try:
        return section(**values)
    except ValidationError as error:
        raise ConfigError(_explain(error, labels, section.section)) from None


def _entry(value: Any, *, is_json: bool) -> Any:
    """The value of an entry of a mapping; `None` unsets it."""
    if value == "None":
        return None
    try:
        return read_exact_json(value, lenient=True) if is_json and isinstance(value, str) else value
    except JsonError:
        return value


def _meant(written: str, section: type[Section], origin: str) -> str:
    prefix = f"{section.section}." if origin else f"--{section.section}."
    if written.startswith("estimator_") and "." not in written:
        name = written.removeprefix("estimator_")
        return f"; a parameter of the estimator is {prefix}estimator_params.{name}"
    return nearest(written, section.model_fields, prefix)


def _from_text(field: FieldInfo, value: Any, label: str, *, is_flag: bool) -> Any:
    """A value of the command line in a shape that pydantic reads; of a file, `a, b` for a list."""
    kinds = {get_origin(kind) or kind for kind in _alternatives(field.annotation)}
    if not is_flag and not (isinstance(value, str) and list in kinds and str not in kinds):
        return value
    if value is BARE:
        if bool not in kinds:
            raise ConfigError(f"{label} needs a value")
        return True
    if value == "None":
        return None
    if kinds & {list, tuple, set, dict}:
        text = str(value).strip()
        if text.startswith(("[", "{")) or dict in kinds:
            try:
                return read_exact_json(text)
            except JsonError as error:
                raise ConfigError(f"{label} is not valid JSON: {error}") from None
        return [part.strip() for part in text.split(",") if part.strip()]
    return value


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    """The kinds of a union, or the only one."""
    return get_args(annotation) if get_origin(annotation) in {Union, UnionType} else (annotation,)


def _explain(error: ValidationError, labels: Mapping[str, str], section: str) -> str:
    """The first problem of each setting: a union of kinds has one for each kind."""
    problems: dict[str, str] = {}
    for problem in error.errors(include_url=False):
        text = problem["msg"].removeprefix("Input ").removeprefix("Value error, ")
        if problem["loc"]:
            name = str(problem["loc"][0])
            # A mapping, such as `extra_body`, may hold a key.
            hidden = name.endswith(("_key", "_token")) or isinstance(problem["input"], dict)
            got = "" if hidden else f", got {problem['input']!r}"
            text = f"{labels.get(name, f'{section}.{name}'.lstrip('.'))} {text}{got}"
        problems.setdefault(str(problem["loc"][:1]), " ".join(text.split()))
    return "; ".join(problems.values())


def nearest(name: str, known: Mapping[str, Any] | Sequence[str], prefix: str = "") -> str:
    """The end of a message about an unknown name: the nearest known one, or all of them."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    if close:
        return f"; did you mean {prefix}{close[0]}?"
    return f"; choose one of {', '.join(sorted(known))}"


def with_proxies(servers: Sequence[ServerT]) -> list[ServerT]:
    """The servers, each with the proxy of `http_proxy` and its like unless its setting names one."""
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
        return "none"  # the URL is refused where it is used
    named = proxies.get(parts.scheme) or proxies.get("all")
    if not named or proxy_bypass(parts.netloc.rpartition("@")[2]) or _is_within(parts.hostname, proxies):
        return "none"
    return named if "://" in named else f"http://{named}"


def _is_within(host: str | None, proxies: dict[str, str]) -> bool:
    """Whether `no_proxy` has an address's network (`10.0.0.0/8`) or IPv6 address: urllib reads neither."""
    for name in proxies.get("no", "").split(","):
        try:
            if ip_address(host or "") in ip_network(name.strip().strip("[]"), strict=False):
                return True
        except ValueError:
            continue
    return False


def settings_help(config: AgentEnvConfig, env: str, servers: Sequence[ModelServerConfig]) -> str:
    """Every setting once: the ten of a first run, the environment's own, then the others in groups.

    Args:
        config: with the defaults of the environment.
        env: its name.
        servers: one of each section that the environment uses.
    """
    first, own = "Settings that matter first", f"Settings of {env} alone"
    groups: dict[str, list[tuple[str, str]]] = {first: [], own: []}
    title = ""
    for section in (config, *servers):
        for name in type(section).model_fields:
            if section is not config:
                title = _SECTIONS[section.section][1]
            elif name in SETTING_GROUPS:
                title = SETTING_GROUPS[name]
            place = own if section is config and name not in AgentEnvConfig.model_fields else title
            is_first = f"{section.section}.{name}" in FIRST
            groups.setdefault(first if is_first else place, []).append(_row(section, name))
    groups[first].sort(key=lambda row: FIRST.index(row[0].removeprefix("--")))
    parts = [_page(f"{title}:", "", rows) for title, rows in groups.items() if rows]
    parts.append("--env.help NAME explains one in full, --openai.help NAME one of a model server.")
    return "\n\n".join(parts)


def _row(section: Section, name: str) -> tuple[str, str]:
    info, default = type(section).model_fields[name], getattr(section, name)
    notes = [] if default is None or default == "" else [without_credentials(f"default: {default}")]
    if any(get_origin(kind) is Literal for kind in _alternatives(info.annotation)):
        notes.append(_kinds(info))
    notes += _bounds(info)
    first_sentence = (info.description or "").partition(". ")[0].rstrip(".")
    text = f"{first_sentence}. [{'; '.join(notes)}]" if notes else f"{first_sentence}."
    return f"--{section.section}.{name}", text


def _page(title: str, text: str, rows: Sequence[tuple[str, str]]) -> str:
    formatter = click.HelpFormatter(width=_WIDTH)
    formatter.write(f"{title}\n")
    formatter.indent()
    if text:
        formatter.write_text(text)
        formatter.write_paragraph()
    if rows:
        formatter.write_dl(rows, col_max=_NAME_WIDTH)
    return formatter.getvalue().rstrip()


def setting_help(section: Section, name: str, *, estimator: str) -> str:
    """One setting: what it means, its kind, default and bounds.

    Args:
        section: with the default values.
        name: of the setting; of `estimator_params.gamma` the parameter.
        estimator: the one whose parameters are explained.

    Raises:
        ConfigError: an unknown name; the message has the nearest.
    """
    field, _, key = name.partition(".")
    known = type(section).model_fields
    if field not in known:
        raise ConfigError(f"no setting --{section.section}.{name}{nearest(name, known)}")
    if field == "estimator_params":
        spec = describe(estimator)
        rows = [
            (each.name, f"{each.description} [{each.possible}; default: {each.default}]")
            for each in ([spec.parameter(key)] if key else spec.parameters)
        ]
        title = f"--env.estimator_params.NAME VALUE, of the estimator {estimator}"
        return _page(title, f"{spec.summary} `turnwise credit` describes all estimators.", rows)
    info = known[field]
    default = without_credentials(str(getattr(section, field)))
    rows = [("kind", _kinds(info)), ("default", default), ("bounds", ", ".join(_bounds(info)))]
    return _page(f"--{section.section}.{field}", info.description or "", [row for row in rows if row[1]])


def _kinds(field: FieldInfo) -> str:
    kinds: list[str] = []
    for kind in _alternatives(field.annotation):
        origin = get_origin(kind) or kind
        if origin is Literal:
            kinds += map(str, get_args(kind))
        elif origin in (list, tuple, set):
            kinds.append("list (A,B,C or JSON)")
        elif origin is dict:
            kinds.append("mapping (one NAME VALUE each)")
        else:
            base = next((each for each in get_args(kind) if isinstance(each, type)), origin)
            kinds.append(_KINDS.get(base, getattr(base, "__name__", str(base))))
    return " | ".join(kinds)


def _bounds(field: FieldInfo) -> list[str]:
    return [
        f"{sign} {getattr(bound, name)}"
        for bound in field.metadata
        for name, sign in _SIGNS.items()
        if getattr(bound, name, None) is not None
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvCall:
    """An environment and the settings that the user gave for it."""

    env_cls: type[AgentEnv]
    file: Overrides | None
    flags: Overrides

    @property
    def layers(self) -> list[Overrides]:
        """What the file and the command line give."""
        return [each for each in (self.file, self.flags) if each is not None]

    def open(self, *, flags: Mapping[str, Any] | None = None) -> AgentEnv:
        """The environment with its settings.

        Args:
            flags: settings that the command's own options stand for; they win.

        Raises:
            ConfigError: a setting is wrong.
        """
        settings = self.settings(flags or {})
        return self.env_of(settings.env, [*settings.servers, *settings.second])

    def env_of(
        self, config: AgentEnvConfig, servers: Sequence[ModelServerConfig], *, policy: Policy | None = None
    ) -> AgentEnv:
        """The environment with these settings and servers, and a policy that plays in their place.

        Raises:
            ConfigError: its `__init__` takes other arguments, does not pass them on, or raises; or a model
                is named without a server.
        """
        self._refuse_no_server(servers)
        cls, servers = self.env_cls, with_proxies(servers)
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
        # A script would play in the place of the model, and nothing in the record would look wrong.
        there = {"env", *(server.section for server in servers if server.base_url)}
        for section in [each for each in self.flags.sections if each not in there]:
            for name in ("model_name", "temperature", "top_p"):
                if name in self.flags.of(section):
                    raise ConfigError(
                        f"--{section}.{name} is for a model server, and none is named; give "
                        f"--{section}.base_url, such as http://localhost:8000/v1"
                    )

    def sources(self) -> Sources:
        """Where settings came from that the class does not give, by `section.name`."""
        sources: dict[str, str] = {}
        for layer in self.layers:
            origin = Path(layer.origin).name if layer.origin else COMMAND_LINE
            for section in layer.sections:
                for names in layer.each_of(section):
                    sources |= {f"{section}.{name.partition('.')[0]}": origin for name in names}
        return sources

    def settings(self, flags: Mapping[str, Any]) -> Settings:
        """The settings alone, checked.

        Raises:
            ConfigError: a setting is wrong, or of a model that the environment does not use.
        """
        given = {name: value for name, value in flags.items() if value is not None}
        command_line = replace(
            self.flags, sections={**self.flags.sections, "env": {**self.flags.of("env"), **given}}
        )
        settings = merge_settings(own_settings(self.env_cls), self.file, command_line)
        for layer in filter(None, (self.file, command_line)):
            for section, (_, instead) in _USES.items():
                if section in layer.sections and not uses(self.env_cls, section, settings.env):
                    flag = layer.label(section, next(iter(layer.of(section))))
                    raise ConfigError(f"{flag}: environment {self.env_cls.name!r} {instead}")
        return settings


def uses(env_cls: type[AgentEnv], section: str, config: AgentEnvConfig) -> bool:
    """Whether a class uses a second model: it has the hook that plays it, names its server, or asks it."""
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
        return True  # a class of a notebook: its source is unknown


def _set_gamma(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    flags: Overrides = ctx.meta[_OVERRIDES]
    if value is not None:
        env = {**flags.of("env"), "estimator_params.gamma": value}
        ctx.meta[_OVERRIDES] = replace(flags, sections={**flags.sections, "env": env})


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
        sections = ", ".join(f"`{name}:`" for name in _SECTIONS)
        self.params = [
            named,
            click.Option(["--config"], metavar="FILE", help=f"YAML file with settings: {sections}."),
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
            raise ConfigError(f"no option {error.option_name}{meant}; settings are {_FLAGS}") from None

    def invoke(self, ctx: click.Context) -> Any:
        """Find the environment, then run; or show help."""
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
        second = [each() for each in SECOND_MODELS if uses(env_cls, each.section, config)]
        return f"{text}\n\n{settings_help(config, env_cls.name, [ServerConfig(), *second])}"

    def _setting_help(self, ctx: click.Context, given: str | None) -> str | None:
        """The answer to `--env.help NAME`, of any section; `None` if that was not asked."""
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
        explained = config if section == "env" else _SECTIONS[section][0]()
        return setting_help(explained, name, estimator=estimator or "turn_return")


def own_settings(env_cls: type[AgentEnv]) -> tuple[AgentEnvConfig, Any]:
    """The result of the class's `config_init`: its config, and its server config or configs.

    Raises:
        ConfigError: it gives something else, or a setting in it is wrong.
    """
    where = f"{env_cls.__name__}.config_init"
    try:
        given: Any = env_cls.config_init()
    except ValidationError as error:
        raise ConfigError(f"{where}: {_explain(error, {}, '')}") from None
    if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], AgentEnvConfig)):  # pyright: ignore[reportUnknownArgumentType]  # user code
        raise ConfigError(f"{where} gave {given!r:.200}; give (AgentEnvConfig(…), [ServerConfig(…)])")
    return cast("tuple[AgentEnvConfig, Any]", given)


gamma_option = click.option(
    "--gamma",
    metavar="X",
    help="The discount per turn: --env.estimator_params.gamma.",
    callback=_set_gamma,
    expose_value=False,
)
