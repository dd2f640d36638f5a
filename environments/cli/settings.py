"""Settings from the command line and from YAML: CLI over YAML over class defaults, errors in one line."""

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from environments.config import AgentEnvConfig
from environments.config_section import Section
from environments.inference.endpoint import without_credentials
from environments.run.run_files import COMMAND_LINE
from environments.server_config import (
    JudgeConfig,
    ModelServerConfig,
    SecondModelConfig,
    ServerConfig,
    SummariserConfig,
    UserConfig,
    server_configs,
)
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
