"""Settings from the command line and from YAML: CLI over YAML over class defaults, errors in one line."""

import difflib
import json
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import signature
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
from environments.credit import ESTIMATORS, PRESETS, Parameter, describe
from environments.inference.endpoint import without_credentials
from environments.policy.base import Policy
from environments.run.console_streams import outlived_console
from environments.run.discovery import find_environment
from environments.run.loading import run_code
from environments.run.run_files import COMMAND_LINE, Sources
from tools.errors import ConfigError

SECOND_MODELS: tuple[type[SecondModelConfig], ...] = (JudgeConfig, UserConfig, SummariserConfig)
NAMESPACES = (AgentEnvConfig.section, ServerConfig.section, *(each.section for each in SECOND_MODELS))
_SECRET = frozenset({"api_key"})
_FLAGS = " and ".join([", ".join(f"--{each}.NAME" for each in NAMESPACES[:-1]), f"--{NAMESPACES[-1]}.NAME"])
BARE = True
"""The value of a flag that stands alone."""

Config = TypeVar("Config", bound=Section)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """Values that one place gives for the namespaces."""

    env: Mapping[str, Any] = field(default_factory=dict[str, Any])
    openai: Mapping[str, Any] | Sequence[Mapping[str, Any]] = field(default_factory=dict[str, Any])
    """One server, or a list of them (only in YAML)."""
    second: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, "Mapping[str, Any]"])
    """By section: `judge`, `user`, `summariser`."""
    origin: str = ""
    """The YAML file; empty for the command line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What an environment is constructed with."""

    env: AgentEnvConfig
    servers: list[ServerConfig]
    """One without a `base_url` stands for the scripted agent."""
    second: list[SecondModelConfig] = field(default_factory=list[SecondModelConfig])
    """One without a `base_url` stands for the hook that plays it."""


class _StrictLoader(yaml.SafeLoader):
    """PyYAML's, but a key may stand only once in a mapping, as YAML has it: the first value would be lost."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"{key.value!r} stands twice", problem_mark=key.start_mark
                    )
                seen.add(key.value)
        return node


def split_overrides(args: Sequence[str]) -> tuple[Overrides, list[str]]:
    """Take the dotted flags out of a command line; what is left keeps its order.

    `--env.name value`, `--env.name=value` and a bare `--env.name` (true) are understood, and
    `--env.name.key value` for an entry of a mapping; a value that itself starts with `--` needs the `=`.
    The last of two equal flags wins. Values stay text.

    Raises:
        ConfigError: a dotted flag of another namespace.
    """
    found: dict[str, dict[str, Any]] = {namespace: {} for namespace in NAMESPACES}
    rest: list[str] = []
    position = 0
    while position < len(args):
        flag, equals, value = args[position].partition("=")
        namespace, dot, name = flag.removeprefix("--").partition(".")
        position += 1
        if not (flag.startswith("--") and dot and namespace.isidentifier()):
            rest.append(args[position - 1])
        elif namespace not in found:
            raise ConfigError(f"no option {flag}; settings are {_FLAGS}")
        elif equals:
            found[namespace][name] = value
        elif position < len(args) and not args[position].startswith("--"):
            found[namespace][name] = args[position]
            position += 1
        else:
            found[namespace][name] = BARE
    return Overrides(env=found["env"], openai=found["openai"], second=_seconds(found)), rest


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
    top = _mapping({} if content is None else content, str(path))
    for key, value in top.items():
        if key in {"slurm", "testing"}:
            refuse_atropos_switch(key, value)
        elif key not in NAMESPACES:
            raise ConfigError(f"no section {key!r} in {path}{nearest(key, NAMESPACES)}")
    return Overrides(
        env=_mapping(top.get("env") or {}, f"env in {path}"),
        openai=_one_or_many(top.get("openai") or {}, path),
        second=_seconds(
            {
                section: _mapping(top.get(section) or {}, f"{section} in {path}")
                for section in NAMESPACES
                if section not in ("env", "openai")
            }
        ),
        origin=str(path),
    )


def refuse_atropos_switch(name: str, value: object) -> None:
    """Accept Atropos' `slurm` and `testing` when they are off, as its config files have them.

    Raises:
        ConfigError: the switch is on.
    """
    if str(value).lower() in {"false", "none", "0", "no", "off"}:
        return
    instead = {
        "slurm": "Turnwise starts no model servers; name them with --openai.base_url or in --config",
        "testing": "the scripted agent plays when no --openai.base_url is given",
    }
    raise ConfigError(f"Atropos' {name!r} is not supported: {instead[name]}")


def merge_settings(
    defaults: tuple[BaseModel, Any], file: Overrides | None, command_line: Overrides
) -> Settings:
    """Command line over file over the defaults that `config_init` gave.

    Args:
        defaults: the environment's config, and its server config or configs.
        file: what `read_yaml` gave.
        command_line: what `split_overrides` gave.

    Raises:
        ConfigError: an unknown name, a value of the wrong kind or out of range.
    """
    config, servers = defaults
    file = file or Overrides()
    env = _apply(cast(AgentEnvConfig, config), (file.env, file.origin), (command_line.env, ""))
    known = server_configs(servers)
    policies = _servers(known, file, cast(Mapping[str, Any], command_line.openai))
    return Settings(env=env, servers=policies, second=_second_models(known, file, command_line))


def setting_sources(file: Overrides | None, command_line: Overrides) -> dict[str, str]:
    """Where settings came from, by `section.name`: the file's name, or the command line."""
    sources: dict[str, str] = {}
    for layer in filter(None, (file, command_line)):
        several = layer.openai if isinstance(layer.openai, Sequence) else [layer.openai]
        given = [(AgentEnvConfig, layer.env), *((ServerConfig, each) for each in several)]
        given += [(each, layer.second.get(each.section, {})) for each in SECOND_MODELS]
        for section, names in given:
            for written in names:
                name = f"{section.section}.{written.partition('.')[0]}"
                sources[name] = Path(layer.origin).name if layer.origin else COMMAND_LINE
    return sources


def _one_or_many(value: object, path: Path) -> dict[str, Any] | list[dict[str, Any]]:
    if isinstance(value, list):
        return [_mapping(server, f"a server of openai in {path}") for server in cast(list[object], value)]
    return _mapping(value, f"openai in {path}")


def _seconds(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    return {each.section: found[each.section] for each in SECOND_MODELS if found[each.section]}


def _second_models(
    defaults: Sequence[ModelServerConfig], file: Overrides, command_line: Overrides
) -> list[SecondModelConfig]:
    """Those that somebody says something of."""
    settings: list[SecondModelConfig] = []
    for section in SECOND_MODELS:
        own = next((server for server in defaults if isinstance(server, section)), None)
        layers = [(each.second.get(section.section, {}), each.origin) for each in (file, command_line)]
        if own is not None or any(given for given, _ in layers):
            settings.append(_apply(own or section(), *layers))
    return settings


def _servers(
    defaults: Sequence[ModelServerConfig], file: Overrides, flags: Mapping[str, Any]
) -> list[ServerConfig]:
    known = [server for server in defaults if isinstance(server, ServerConfig)]
    template = known[0] if known else ServerConfig()
    layers: list[tuple[ServerConfig, Mapping[str, Any]]]
    if not isinstance(file.openai, Mapping):
        layers = [(template, given) for given in file.openai]
    elif file.openai or len(known) <= 1:
        layers = [(template, file.openai)]
    else:
        layers = [(server, {}) for server in known]
    if len(layers) > 1 and "base_url" in flags:
        raise ConfigError(
            f"--openai.base_url names one server, but {len(layers)} are configured; give them in --config"
        )
    return [_apply(base, (given, file.origin), (flags, "")) for base, given in layers]


def _apply(base: Config, *layers: tuple[Mapping[str, Any], str]) -> Config:
    """The settings with what each layer says; the last one wins, where the section says so entry by entry."""
    section = type(base)
    fields = section.model_fields
    values = {name: getattr(base, name) for name in fields}
    labels: dict[str, str] = {}
    for given, origin in layers:
        for written, value in given.items():
            label = f"{section.section}.{written} in {origin}" if origin else f"--{section.section}.{written}"
            name, _, key = written.partition(".")
            known = name in fields or name in section.without_effect
            if not known or written.endswith(".") or (key and not _is_mapping(fields[name])):
                raise ConfigError(f"no setting {label}{_meant(written, section, origin)}")
            labels[name] = label
            if name in fields and not key and (not origin or _is_text_for_list(fields[name], value)):
                value = _from_text(fields[name], value, label)
            elif key and value == "None":
                value = None
            elif not origin and key and name in section.json_entries:
                value = _json_or_text(value)
            joins = bool(key) or name in section.by_entry
            values[name] = _joined(values[name], key, value, label) if joins else value
    try:
        return section(**values)
    except ValidationError as error:
        raise ConfigError(_explain(error, labels, section.section)) from None


def _joined(before: Any, key: str, value: Any, label: str) -> dict[str, Any]:
    """A mapping with one more entry, or with those of another mapping."""
    more: Any = {key: value} if key else {} if value is None else value
    if not isinstance(more, Mapping):
        raise ConfigError(f"{label} must be a mapping of names to values, got {value!r}")
    return {**(before or {}), **cast("Mapping[str, Any]", more)}


def _meant(written: str, section: type[Section], origin: str) -> str:
    prefix = f"{section.section}." if origin else f"--{section.section}."
    if written.startswith("estimator_") and "." not in written:
        name = written.removeprefix("estimator_")
        return f"; a parameter of the estimator is {prefix}estimator_params.{name}"
    return nearest(written, section.model_fields, prefix)


def _is_mapping(field: FieldInfo) -> bool:
    return get_origin(field.annotation) is dict


def _is_text_for_list(field: FieldInfo, value: Any) -> bool:
    """Whether a file has `name: a, b` where it could have `name: [a, b]`."""
    kinds = {get_origin(kind) or kind for kind in alternatives(field.annotation)}
    return isinstance(value, str) and list in kinds and str not in kinds


def _from_text(field: FieldInfo, value: Any, label: str) -> Any:
    """A command-line value in a shape that pydantic can take further."""
    kinds = {get_origin(kind) or kind for kind in alternatives(field.annotation)}
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


def alternatives(annotation: Any) -> tuple[Any, ...]:
    """The kinds of a union, or the only one."""
    return get_args(annotation) if get_origin(annotation) in {Union, UnionType} else (annotation,)


def _explain(error: ValidationError, labels: Mapping[str, str], namespace: str) -> str:
    """What is wrong with each setting, in its first words: a union of kinds has one problem for each."""
    problems: dict[str, str] = {}
    for problem in error.errors(include_url=False):
        text = problem["msg"].removeprefix("Input ").removeprefix("Value error, ")
        if problem["loc"]:
            name = str(problem["loc"][0])
            got = "" if name in _SECRET else f", got {problem['input']!r}"
            text = f"{labels.get(name, f'{namespace}.{name}')} {text}{got}"
        problems.setdefault(str(problem["loc"][:1]), " ".join(text.split()))
    return "; ".join(problems.values())


def nearest(name: str, known: Mapping[str, Any] | Sequence[str], prefix: str = "") -> str:
    """The end of a message about a name that nothing has: which is near, or all there are."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    if close:
        return f"; did you mean {prefix}{close[0]}?"
    return f"; choose one of {', '.join(sorted(known))}"


def _mapping(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where} must be a mapping of names to values, got {type(value).__name__}")
    return {str(key): entry for key, entry in cast(dict[Any, Any], value).items()}


def flag_help(field: FieldInfo, default: Any) -> str:
    """What a setting means, its default and its bounds, in one line."""
    is_unset = default is None or default == ""
    notes = [] if is_unset else [without_credentials(f"default: {getattr(default, 'value', default)}")]
    kinds = [kind for kind in alternatives(field.annotation) if kind is not NoneType]
    for kind in kinds:
        if get_origin(kind) is Literal:
            notes.append(("one of " if len(kinds) == 1 else "or ") + ", ".join(map(str, get_args(kind))))
    for bound in field.metadata:
        for name, sign in (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<")):
            if getattr(bound, name, None) is not None:
                notes.append(f"{sign} {getattr(bound, name)}")
    facts = f"[{'; '.join(notes)}]" if notes else ""
    return f"{field.description or ''} {facts}".strip()


ServerT = TypeVar("ServerT", bound=ModelServerConfig)


def with_proxies(servers: Sequence[ServerT]) -> list[ServerT]:
    """The servers, each with the proxy that `http_proxy` and its like name, where its setting names none."""
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
    try:
        address = ip_address(host or "")
    except ValueError:
        return False
    for name in proxies.get("no", "").split(","):
        try:
            if address in ip_network(name.strip().strip("[]"), strict=False):
                return True
        except ValueError:
            continue
    return False


FIRST: Sequence[tuple[type[Section], str]] = (
    (AgentEnvConfig, "group_size"),
    (AgentEnvConfig, "max_items"),
    (AgentEnvConfig, "dataset_path"),
    (ServerConfig, "base_url"),
    (ServerConfig, "model_name"),
    (AgentEnvConfig, "scripted_skill"),
    (AgentEnvConfig, "max_turns"),
    (AgentEnvConfig, "max_concurrent_rollouts"),
    (AgentEnvConfig, "sandbox"),
    (AgentEnvConfig, "estimator"),
)
"""The ten that a first run sets."""
OTHER = "Other"
_GROUPS: Mapping[str, Sequence[str]] = {
    "Items": ("total_steps", "shuffle", "weight_field", "item_", "dataset_", "max_items", "seed"),
    "Rollouts": (
        "group_size", "max_turns", "max_tokens_per_turn", "token_budget", "min_group_size",
        "max_failed_groups", "max_concurrent_rollouts", "rollout_timeout_s", "hook_", "profile",
    ),
    "Sampling": ("scripted_skill", "temperature", "top_p", "request_", "tokenizer_name"),
    "Context": ("condenser", "max_token_length"),
    "Tools": ("enabled_toolsets", "disabled_toolsets", "tool_"),
    "Sandbox": ("sandbox", "verify_sandbox", "allow_unsafe_sandbox"),
    "Rewards and credit": (
        "score_aggregation", "missing_outcome", "mask_truncated", "max_staleness", "estimator",
    ),
    "Evaluation": ("eval_", "pass_score", "held_out"),
    "Record and tracking": (
        "data_", "run_", "fresh", "accept", "use_", "wandb_", "trackio_", "include_messages",
    ),
    "Serving a trainer": (
        "credit_view", "score_divisor", "prefix_weighting", "rollout_server_url", "outbox_",
        "shutdown_grace_s", "exit_when_api_away_s", "allow_approximate_tokens", "max_num_workers",
        "inference_weight",        "max_batches_offpolicy", "min_batch_allocation", "worker_timeout",
    ),
}  # fmt: skip
"""Names, and how those begin of which there are several."""


def grouped(names: Sequence[str]) -> dict[str, list[str]]:
    """Settings of an environment by their group; in a group those that are named first come first."""
    groups: dict[str, list[str]] = {title: [] for title in (*_GROUPS, OTHER)}
    for name in names:
        groups[_group_of(name)].append(name)
    for title, known in _GROUPS.items():
        groups[title].sort(key=lambda name: next(at for at, each in enumerate(known) if _is(name, each)))
    return {title: each for title, each in groups.items() if each}


def _group_of(name: str) -> str:
    # A name in full counts before the beginning of a name: `sandbox_network` before `sandbox`.
    exact = (title for title, known in _GROUPS.items() if name in known)
    begins = (title for title, known in _GROUPS.items() if any(_is(name, each) for each in known))
    return next(exact, None) or next(begins, OTHER)


def _is(name: str, known: str) -> bool:
    return name == known or name.startswith(known if known.endswith("_") else f"{known}_")


_WIDTH = 80
_NAME_WIDTH = 34
_KINDS = {int: "whole number", float: "number", bool: "true or false", str: "text"}


def settings_help(config: AgentEnvConfig, env: str, servers: Sequence[tuple[str, Section]]) -> str:
    """Every setting, once: the ten that matter first, the environment's own, then the others in groups.

    Args:
        config: with the defaults of the environment.
        env: its name.
        servers: the settings of model servers, each with its title.
    """
    server = next(each for _, each in servers)
    first = [(config if section is AgentEnvConfig else server, name) for section, name in FIRST]
    left = [name for name in type(config).model_fields if (AgentEnvConfig, name) not in FIRST]
    own = [name for name in left if name not in AgentEnvConfig.model_fields]
    known = grouped([name for name in left if name not in own])
    parts = [_group("Settings that matter first", first)]
    parts += [_group(f"Settings of {env} alone", [(config, name) for name in own])] if own else []
    parts += [_group(title, [(config, name) for name in names]) for title, names in known.items()]
    for title, each in servers:
        names = [name for name in type(each).model_fields if (type(each), name) not in FIRST]
        parts.append(_group(title, [(each, name) for name in names]))
    parts.append("--env.help NAME explains one in full, --openai.help NAME one of a model server.")
    return "\n\n".join(parts)


def setting_help(section: Section, name: str, *, estimator: str) -> str:
    """One setting: what it means, its kind, default and bounds.

    Args:
        section: with the values that hold where nothing is given.
        name: of the setting; of `estimator_params.gamma` the parameter.
        estimator: whose parameters are explained.

    Raises:
        ConfigError: there is none of that name; says which is near.
    """
    field, _, key = name.partition(".")
    if field not in type(section).model_fields:
        raise ConfigError(
            f"no setting --{section.section}.{name}{nearest(name, type(section).model_fields, '')}"
        )
    if field == "estimator_params":
        return _estimator_help(estimator, key)
    info = type(section).model_fields[field]
    flag = f"--{section.section}.{field}"
    facts = [
        ("kind", _kind(info)),
        ("default", without_credentials(str(getattr(section, field)))),
        *([("bounds", bounds)] if (bounds := ", ".join(_bounds(info))) else []),
        *([("names", ", ".join(sorted(ESTIMATORS)))] if field == "estimator" else []),
        *([("names", ", ".join(sorted(PRESETS)))] if field == "estimator_preset" else []),
        ("in a file", f"{section.section}: {{{field}: …}}"),
    ]
    return "\n".join([flag, *_paragraph(info.description or "", "  "), "", *_facts(facts)])


def _estimator_help(estimator: str, key: str) -> str:
    spec = describe(estimator)
    shown = [spec.parameter(key)] if key else list(spec.parameters)
    lines = [f"--env.estimator_params.NAME VALUE, of the estimator {estimator}"]
    lines += _paragraph(spec.summary, "  ")
    for parameter in shown:
        lines += ["", f"  {parameter.name}", *_facts(_parameter_facts(parameter), "    ")]
    if not shown:
        lines += ["", "  It has no parameters."]
    return "\n".join([*lines, "", "  --env.estimator chooses another; `turnwise credit` describes all."])


def _parameter_facts(parameter: Parameter) -> list[tuple[str, str]]:
    default = parameter.default
    shown = str(default).lower() if isinstance(default, bool) or default is None else str(default)
    return [("meaning", parameter.description), ("possible", parameter.possible), ("default", shown)]


def _group(title: str, settings: Sequence[tuple[Section, str]]) -> str:
    formatter = click.HelpFormatter(width=_WIDTH)
    rows = [
        (f"--{section.section}.{name}", _short(type(section).model_fields[name], getattr(section, name)))
        for section, name in settings
    ]
    with formatter.section(title):
        formatter.write_dl(rows, col_max=_NAME_WIDTH)
    return formatter.getvalue().rstrip()


def _short(field: FieldInfo, default: Any) -> str:
    """The first sentence, and what stands in brackets of the whole."""
    text = flag_help(field, default)
    description = field.description or ""
    return text.replace(description, _first_sentence(description), 1)


def _first_sentence(text: str) -> str:
    return text.partition(". ")[0].rstrip(".") + "." if text else ""


def _kind(field: FieldInfo) -> str:
    kinds: list[str] = []
    for kind in alternatives(field.annotation):
        origin = get_origin(kind) or kind
        if kind is NoneType:
            kinds.append("unset (None)")
        elif origin is Literal:
            kinds.append("one of " + ", ".join(map(str, get_args(kind))))
        elif origin in (list, tuple, set):
            kinds.append("a list, A,B,C or JSON")
        elif origin is dict:
            kinds.append("a mapping, one NAME VALUE each")
        else:
            base = next((each for each in get_args(kind) if isinstance(each, type)), origin)
            kinds.append(_KINDS.get(base, getattr(base, "__name__", str(base))))
    return ", or ".join(dict.fromkeys(kinds))


def _bounds(field: FieldInfo) -> list[str]:
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    return [
        f"{sign} {getattr(bound, name)}"
        for bound in field.metadata
        for name, sign in signs.items()
        if getattr(bound, name, None) is not None
    ]


def _facts(facts: Sequence[tuple[str, str]], indent: str = "  ") -> list[str]:
    width = max(len(name) for name, _ in facts)
    return [
        line
        for name, text in facts
        for line in _paragraph(text, f"{indent}{name:<{width}}  ", indent + " " * (width + 2))
    ]


def _paragraph(text: str, first: str, indent: str | None = None) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=first, subsequent_indent=first if indent is None else indent
    )


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
