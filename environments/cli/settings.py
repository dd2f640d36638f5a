"""Settings from the command line and from YAML: CLI over YAML over class defaults, errors in one line."""

import difflib
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
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
from environments.credit import ESTIMATORS, PRESETS, describe
from environments.hooks import Hooks
from environments.inference.endpoint import without_credentials
from environments.policy.base import Policy
from environments.run.console_streams import outlived_console
from environments.run.discovery import find_environment
from environments.run.loading import run_code
from environments.run.open_run import COMMAND_LINE, Sources
from environments.turn_level_reward import TurnLevelRewardMixin
from tools.errors import ConfigError

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
    "judge": r"\.judge\b",
    "user": r"\bSimulatedUser\b",
    "summariser": r"by=[\"']model[\"']",
}
"""What the source of a class has that uses a second model without a hook that plays it."""
_ATROPOS_SWITCHES = {
    "slurm": "Turnwise starts no model servers; name them with --openai.base_url or in --config",
    "testing": "the scripted agent plays when no --openai.base_url is given",
}
_OFF = {"false", "none", "0", "no", "off"}
_SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
_KINDS = {int: "whole number", float: "number", bool: "true or false", str: "text"}
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
    """The values that one place gives, by section."""

    env: Mapping[str, Any] = field(default_factory=dict[str, Any])
    openai: Mapping[str, Any] | Sequence[Mapping[str, Any]] = field(default_factory=dict[str, Any])
    """One server, or a list of them (only in YAML)."""
    second: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, "Mapping[str, Any]"])
    """By section: `judge`, `user`, `summariser`."""
    origin: str = ""
    """The YAML file; empty for the command line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings that an environment is constructed with."""

    env: AgentEnvConfig
    servers: list[ServerConfig]
    """One without a `base_url` stands for the scripted agent."""
    second: list[SecondModelConfig] = field(default_factory=list[SecondModelConfig])
    """One without a `base_url` stands for the hook that plays it."""


class _StrictLoader(yaml.SafeLoader):
    """PyYAML's, but a key that stands twice in a mapping is refused: the first value would be lost."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    problem = f"{key.value!r} stands twice"
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
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
    return _overrides(found, ""), rest


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
    except yaml.YAMLError as error:
        raise ConfigError(f"--config {path} is not YAML: {' '.join(str(error).split())}") from None
    found: dict[str, Any] = {section: {} for section in _SECTIONS}
    for key, value in _mapping(content or {}, str(path)).items():
        if key in _ATROPOS_SWITCHES:
            if str(value).lower() not in _OFF:
                raise ConfigError(f"Atropos' {key!r} is not supported: {_ATROPOS_SWITCHES[key]}")
        elif key not in _SECTIONS:
            raise ConfigError(f"no section {key!r} in {path}{nearest(key, _SECTIONS)}")
        elif key == "openai" and isinstance(value, list):
            servers = cast("list[object]", value)
            found[key] = [_mapping(server, f"a server of openai in {path}") for server in servers]
        else:
            found[key] = _mapping(value or {}, f"{key} in {path}")
    return _overrides(found, str(path))


def _overrides(found: Mapping[str, Any], origin: str) -> Overrides:
    second = {each.section: found[each.section] for each in SECOND_MODELS if found[each.section]}
    return Overrides(env=found["env"], openai=found["openai"], second=second, origin=origin)


def _mapping(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where} must be a mapping of names to values, got {type(value).__name__}")
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
    config, servers = defaults
    file = file or Overrides()
    env = _apply(cast(AgentEnvConfig, config), (file.env, file.origin), (command_line.env, ""))
    known = server_configs(servers)
    second: list[SecondModelConfig] = []
    for section in SECOND_MODELS:
        own = next((server for server in known if isinstance(server, section)), None)
        layers = [(each.second.get(section.section, {}), each.origin) for each in (file, command_line)]
        if own is not None or any(given for given, _ in layers):
            second.append(_apply(own or section(), *layers))
    policies = _servers(known, file, cast("Mapping[str, Any]", command_line.openai))
    return Settings(env=env, servers=policies, second=second)


def setting_sources(file: Overrides | None, command_line: Overrides) -> dict[str, str]:
    """Where settings came from, by `section.name`: the file's name, or the command line."""
    sources: dict[str, str] = {}
    for layer in filter(None, (file, command_line)):
        several = layer.openai if isinstance(layer.openai, Sequence) else [layer.openai]
        given = [("env", layer.env), *(("openai", each) for each in several), *layer.second.items()]
        for section, names in given:
            for written in names:
                name = f"{section}.{written.partition('.')[0]}"
                sources[name] = Path(layer.origin).name if layer.origin else COMMAND_LINE
    return sources


def _servers(
    defaults: Sequence[ModelServerConfig], file: Overrides, flags: Mapping[str, Any]
) -> list[ServerConfig]:
    known = [server for server in defaults if isinstance(server, ServerConfig)] or [ServerConfig()]
    if not isinstance(file.openai, Mapping):
        layers = [(known[0], given) for given in file.openai]
    elif file.openai:
        layers = [(known[0], file.openai)]
    else:
        layers = [(server, file.openai) for server in known]
    if len(layers) > 1 and "base_url" in flags:
        raise ConfigError(
            f"--openai.base_url names one server, but {len(layers)} are configured; give them in --config"
        )
    return [_apply(base, (given, file.origin), (flags, "")) for base, given in layers]


def _apply(base: Config, *layers: tuple[Mapping[str, Any], str]) -> Config:
    """The settings with the values of each layer; the last one wins, entry by entry in a mapping."""
    section = type(base)
    fields = section.model_fields
    values = {name: getattr(base, name) for name in fields}
    labels: dict[str, str] = {}
    for given, origin in layers:
        for written, value in given.items():
            label = f"{section.section}.{written} in {origin}" if origin else f"--{section.section}.{written}"
            name, dot, key = written.partition(".")
            is_mapping = name in fields and get_origin(fields[name].annotation) is dict
            known = name in fields or name in section.without_effect
            if not known or (dot and not (key and is_mapping)):
                raise ConfigError(f"no setting {label}{_meant(written, section, origin)}")
            labels[name] = label
            if name in fields and not key:
                value = _from_text(fields[name], value, label, is_flag=not origin)
            elif key and value == "None":
                value = None
            elif key and not origin and name == "extra_body":
                value = _json_or_text(value)
            if key or name in section.by_entry:
                more: Any = {key: value} if key else value or {}
                if not isinstance(more, Mapping):
                    raise ConfigError(f"{label} must be a mapping of names to values, got {value!r}")
                before: Mapping[str, Any] = values[name] or {}
                value = {**before, **cast("Mapping[str, Any]", more)}
            values[name] = value
    try:
        return section(**values)
    except ValidationError as error:
        raise ConfigError(_explain(error, labels, section.section)) from None


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
                return json.loads(text)
            except json.JSONDecodeError as error:
                raise ConfigError(f"{label} is not valid JSON: {error.msg}, got {text!r}") from None
        return [part.strip() for part in text.split(",") if part.strip()]
    return value


def _json_or_text(value: Any) -> Any:
    try:
        return json.loads(value)
    except (TypeError, ValueError):
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
            got = "" if name == "api_key" else f", got {problem['input']!r}"
            text = f"{labels.get(name, f'{section}.{name}')} {text}{got}"
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
    groups: dict[str, list[tuple[Section, str]]] = {first: [], own: []}
    title = ""
    for name in type(config).model_fields:
        title = SETTING_GROUPS.get(name, title) if name in AgentEnvConfig.model_fields else own
        groups.setdefault(title, []).append((config, name))
    for server in servers:
        groups[_SECTIONS[server.section][1]] = [(server, name) for name in type(server).model_fields]
    settings = {f"{row[0].section}.{row[1]}": row for rows in groups.values() for row in rows}
    for title, rows in groups.items():
        groups[title] = [row for row in rows if f"{row[0].section}.{row[1]}" not in FIRST]
    groups[first] = [settings[name] for name in FIRST]
    parts = [_group(title, rows) for title, rows in groups.items() if rows]
    parts.append("--env.help NAME explains one in full, --openai.help NAME one of a model server.")
    return "\n\n".join(parts)


def _group(title: str, settings: Sequence[tuple[Section, str]]) -> str:
    formatter = click.HelpFormatter(width=_WIDTH)
    rows: list[tuple[str, str]] = []
    for section, name in settings:
        info, default = type(section).model_fields[name], getattr(section, name)
        notes = [*_possible(info), *_bounds(info)]
        if default is not None and default != "":
            notes.insert(0, without_credentials(f"default: {default}"))
        first_sentence = (info.description or "").partition(". ")[0].rstrip(".")
        text = f"{first_sentence}. [{'; '.join(notes)}]" if notes else f"{first_sentence}."
        rows.append((f"--{section.section}.{name}", text))
    with formatter.section(title):
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
        return _estimator_help(estimator, key)
    info = known[field]
    facts = {
        "kind": ", or ".join(_kinds(info)),
        "default": without_credentials(str(getattr(section, field))),
        "bounds": ", ".join(_bounds(info)),
        "names": ", ".join(sorted({"estimator": ESTIMATORS, "estimator_preset": PRESETS}.get(field, ()))),
        "in a file": f"{section.section}: {{{field}: …}}",
    }
    return "\n".join(
        [f"--{section.section}.{field}", *_paragraph(info.description or "", "  "), "", *_facts(facts, "  ")]
    )


def _estimator_help(estimator: str, key: str) -> str:
    spec = describe(estimator)
    lines = [f"--env.estimator_params.NAME VALUE, of the estimator {estimator}"]
    lines += _paragraph(spec.summary, "  ")
    for parameter in [spec.parameter(key)] if key else spec.parameters:
        default = parameter.default
        shown = str(default).lower() if isinstance(default, bool) or default is None else str(default)
        facts = {"meaning": parameter.description, "possible": parameter.possible, "default": shown}
        lines += ["", f"  {parameter.name}", *_facts(facts, "    ")]
    if not spec.parameters:
        lines += ["", "  It has no parameters."]
    return "\n".join([*lines, "", "  --env.estimator chooses another; `turnwise credit` describes all."])


def _possible(field: FieldInfo) -> Iterator[str]:
    kinds = [kind for kind in _alternatives(field.annotation) if kind is not NoneType]
    for kind in kinds:
        if get_origin(kind) is Literal:
            yield ("one of " if len(kinds) == 1 else "or ") + ", ".join(map(str, get_args(kind)))


def _kinds(field: FieldInfo) -> Iterator[str]:
    for kind in _alternatives(field.annotation):
        origin = get_origin(kind) or kind
        if kind is NoneType:
            yield "unset (None)"
        elif origin is Literal:
            yield "one of " + ", ".join(map(str, get_args(kind)))
        elif origin in (list, tuple, set):
            yield "a list, A,B,C or JSON"
        elif origin is dict:
            yield "a mapping, one NAME VALUE each"
        else:
            base = next((each for each in get_args(kind) if isinstance(each, type)), origin)
            yield _KINDS.get(base, getattr(base, "__name__", str(base)))


def _bounds(field: FieldInfo) -> Iterator[str]:
    for bound in field.metadata:
        for name, sign in _SIGNS.items():
            if getattr(bound, name, None) is not None:
                yield f"{sign} {getattr(bound, name)}"


def _facts(facts: Mapping[str, str], indent: str) -> list[str]:
    width = max(len(name) for name, text in facts.items() if text)
    rest = indent + " " * (width + 2)
    return [
        line for name, text in facts.items() for line in _paragraph(text, f"{indent}{name:<{width}}  ", rest)
    ]


def _paragraph(text: str, first: str, rest: str | None = None) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=first, subsequent_indent=first if rest is None else rest
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvCall:
    """An environment and the settings that the user gave for it."""

    env_cls: type[AgentEnv]
    file: Overrides | None
    flags: Overrides

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
        there = {server.section for server in servers if server.base_url}
        flags = {"openai": self.flags.openai, **self.flags.second}
        for section, given in flags.items():
            needless = [name for name in ("model_name", "temperature", "top_p") if name in given]
            if needless and section not in there:
                raise ConfigError(
                    f"--{section}.{needless[0]} is for a model server, and none is named; give "
                    f"--{section}.base_url, such as http://localhost:8000/v1"
                )

    def sources(self) -> Sources:
        """Where settings came from that the class does not give."""
        return setting_sources(self.file, self.flags)

    def settings(self, flags: Mapping[str, Any]) -> Settings:
        """The settings alone, checked.

        Raises:
            ConfigError: a setting is wrong, or of a model that the environment does not use.
        """
        given = {name: value for name, value in flags.items() if value is not None}
        command_line = replace(self.flags, env={**self.flags.env, **given})
        settings = merge_settings(own_settings(self.env_cls), self.file, command_line)
        for layer in filter(None, (self.file, command_line)):
            for section, names in layer.second.items():
                if not uses(self.env_cls, section, settings.env):
                    flag = (
                        f"{section}: in {layer.origin}"
                        if layer.origin
                        else f"--{section}.{next(iter(names))}"
                    )
                    raise ConfigError(f"{flag}: environment {self.env_cls.name!r} {_unused(section)}")
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
    try:
        return any(re.search(_USES[section], inspect.getsource(sys.modules[cls.__module__])) for cls in own)
    except (OSError, TypeError, KeyError):
        return True  # a class of a notebook: its source is unknown


def _unused(section: str) -> str:
    if section == "summariser":
        return "has no condenser that a second model plays; choose --env.condenser summarise_by_model"
    what = {"judge": "asks no judge: nothing calls ctx.judge", "user": "has no SimulatedUser"}[section]
    return f"{what}, and it has no scripted_{section}"


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
        second = [each() for each in SECOND_MODELS if uses(env_cls, each.section, config)]
        return f"{text}\n\n{settings_help(config, env_cls.name, [ServerConfig(), *second])}"

    def _setting_help(self, ctx: click.Context, given: str | None) -> str | None:
        """The answer to `--env.help NAME`, of any section; `None`: it was not asked."""
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
        explained = config if section == "env" else _SECTIONS[section][0]()
        return setting_help(explained, name, estimator=estimator or "turn_return")


def own_settings(env_cls: type[AgentEnv]) -> tuple[AgentEnvConfig, Any]:
    """The result of the class's `config_init`: its config, and its server config or configs.

    Raises:
        ConfigError: it gives something else, or a setting in it is wrong.
    """
    try:
        given: Any = env_cls.config_init()
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        text = f"{env_cls.__name__}.config_init: {where} {problem['msg']}"
        raise ConfigError(text.replace("  ", " ")) from None
    if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], AgentEnvConfig)):  # pyright: ignore[reportUnknownArgumentType]  # user code
        raise ConfigError(
            f"{env_cls.__name__}.config_init gave {given!r:.200}; give (AgentEnvConfig(…), [ServerConfig(…)])"
        )
    return cast("tuple[AgentEnvConfig, Any]", given)
