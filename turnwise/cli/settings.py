"""Settings from the command line and from YAML: CLI over YAML over class defaults, errors in one line."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import click
import yaml
from pydantic import BaseModel, ValidationError

from environments.base_env import AgentEnv
from environments.config import (
    BARE,
    SETTING_GROUPS,
    AgentEnvConfig,
    JudgeConfig,
    ModelServerConfig,
    ReferenceConfig,
    SecondModelConfig,
    Section,
    ServerConfig,
    SummariserConfig,
    UserConfig,
    explain,
    mapping_of,
    server_configs,
)
from environments.credit import describe
from tools.errors import ConfigError
from tools.plain_text import nearest

SECOND_MODELS: tuple[type[SecondModelConfig], ...] = (
    JudgeConfig, UserConfig, SummariserConfig, ReferenceConfig,
)  # fmt: skip
SECTIONS: Mapping[str, tuple[type[Section], str]] = {
    "env": (AgentEnvConfig, ""),
    "openai": (ServerConfig, "Model server"),
    "judge": (JudgeConfig, "Model server of the judge"),
    "user": (UserConfig, "Model server of the simulated user"),
    "summariser": (SummariserConfig, "Model server of the summariser"),
    "reference": (ReferenceConfig, "Model server of the reference"),
}
FLAGS = ", ".join(f"--{name}.NAME" for name in SECTIONS)
_ATROPOS_SWITCHES = ("slurm", "testing")
_OFF = {"false", "none", "0", "no", "off"}
_WIDTH = 80
_NAME_WIDTH = 34
FIRST = (
    "env.group_size", "env.max_items", "env.dataset_path", "openai.base_url", "openai.model_name",
    "env.scripted_skill", "env.max_turns", "env.max_concurrent_rollouts", "env.sandbox", "env.estimator",
)  # fmt: skip
"""The ten settings of a first run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    sections: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """In a file, `openai` may be a list of servers."""
    origin: str = ""
    """The YAML file; empty for the command line."""

    def of(self, section: str) -> Any:
        return self.sections.get(section, {})

    def each_of(self, section: str) -> list[Mapping[str, Any]]:
        given: Any = self.of(section)
        return cast("list[Mapping[str, Any]]", given if isinstance(given, list) else [given])


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    env: AgentEnvConfig
    servers: list[ServerConfig]
    """A server without `base_url` stands for the scripted agent."""
    second: list[SecondModelConfig] = field(default_factory=list[SecondModelConfig])


class _DuplicateKeyError(yaml.MarkedYAMLError):
    """A key stands twice in a mapping; the message quotes only the key."""


class _StrictLoader(yaml.SafeLoader):
    """PyYAML's loader, but a duplicate key is an error."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    problem = f"{key.value!r} stands twice"
                    raise _DuplicateKeyError(problem=problem, problem_mark=key.start_mark)
                seen.add(key.value)
        return node


def split_overrides(args: Sequence[str]) -> tuple[Overrides, list[str]]:
    """Split a command line into dotted flags and the rest.

    Forms: `--env.name value`, `--env.name=value`, a bare `--env.name` (true), and `--env.name.key value` for
    an entry of a mapping. A value that starts with `--` needs the `=`. The last of two equal flags wins.

    Raises:
        ConfigError: if a dotted flag is of another section.
    """
    found: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    rest: list[str] = []
    position = 0
    while position < len(args):
        flag, equals, value = args[position].partition("=")
        section, dot, name = flag.removeprefix("--").partition(".")
        position += 1
        if not (flag.startswith("--") and dot and section.isidentifier()):
            rest.append(args[position - 1])
        elif section not in found:
            raise ConfigError(f"no option {flag}; settings are {FLAGS}")
        elif equals:
            found[section][name] = value
        elif position < len(args) and not args[position].startswith("--"):
            found[section][name] = args[position]
            position += 1
        else:
            found[section][name] = BARE
    return Overrides(sections={section: values for section, values in found.items() if values}), rest


def read_yaml(path: Path) -> Overrides:
    """Read the sections of a file; `openai:` may be a list of servers.

    Atropos' top-level `slurm` and `testing` are permitted if they are off.

    Raises:
        ConfigError: if the file is unreadable, not YAML, or of another shape.
    """
    try:
        content: object = yaml.load(path.read_text(encoding="utf-8"), _StrictLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read --config {path}: {error}") from None
    except _YAML_ERRORS as error:
        raise ConfigError(f"--config {path} is not YAML: {_yaml_problem(error)}") from None
    found: dict[str, Any] = {}
    for key, value in mapping_of(content or {}, str(path)).items():
        if key in _ATROPOS_SWITCHES and str(value).lower() in _OFF:
            continue
        if key not in SECTIONS:
            raise ConfigError(f"no section {key!r} in {path}{nearest(key, SECTIONS)}")
        if key == "openai" and isinstance(value, list):
            servers = cast("list[object]", value)
            found[key] = [mapping_of(server, f"a server of openai in {path}") for server in servers]
        elif value:
            found[key] = mapping_of(value, f"{key} in {path}")
    return Overrides(sections=found, origin=str(path))


_YAML_ERRORS = (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""PyYAML also raises other errors, for a value that does not fit its tag or form, such as `2026-13-45`."""


def _yaml_problem(error: Exception) -> str:
    """Describe the problem and its place without quoting the file, which may hold an API key."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if problem and not isinstance(error, _DuplicateKeyError):
        problem = re.sub("'(?!<).{3,}'", "'…'", problem)
    place = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
    return f"{problem or 'it cannot be read'}{place}"


def merge_settings(
    defaults: tuple[BaseModel, Any], file: Overrides | None, command_line: Overrides
) -> Settings:
    """Merge settings: the command line over the file over the defaults of `config_init`."""
    config, servers = cast("tuple[AgentEnvConfig, Any]", defaults)
    layers = [each for each in (file, command_line) if each is not None]
    for layer in layers:
        config = config.with_values(layer.of("env"), origin=layer.origin)
    known = server_configs(servers)
    second: list[SecondModelConfig] = []
    for section in SECOND_MODELS:
        server = next((each for each in known if isinstance(each, section)), None)
        for layer in layers:
            if section.section in layer.sections:
                server = server or section()
                server = server.with_values(layer.of(section.section), origin=layer.origin)
        second += [] if server is None else [server]
    policies = [each for each in known if isinstance(each, ServerConfig)] or [ServerConfig()]
    if file is not None and file.of("openai"):
        policies = [policies[0].with_values(each, origin=file.origin) for each in file.each_of("openai")]
    flags = command_line.of("openai")
    if len(policies) > 1 and "base_url" in flags:
        raise ConfigError(
            f"--openai.base_url names one server, but {len(policies)} are configured; give them in --config"
        )
    return Settings(env=config, servers=[each.with_values(flags) for each in policies], second=second)


def settings_help(
    config: AgentEnvConfig, env: str, servers: Sequence[ModelServerConfig], *, every: bool
) -> str:
    """List the ten settings of a first run and the environment's own; if `every`, the others in groups."""
    first, own = "Settings that matter first", f"Settings of {env} alone"
    groups: dict[str, list[tuple[str, str]]] = {first: [], own: []}
    title = ""
    for section in (config, *servers):
        for name in type(section).model_fields:
            if section is not config:
                title = SECTIONS[section.section][1]
            elif name in SETTING_GROUPS:
                title = SETTING_GROUPS[name]
            place = own if section is config and name not in AgentEnvConfig.model_fields else title
            is_first = f"{section.section}.{name}" in FIRST
            groups.setdefault(first if is_first else place, []).append(section.help_line(name))
    groups[first].sort(key=lambda row: FIRST.index(row[0].removeprefix("--")))
    shown = groups if every else {title: groups[title] for title in (first, own)}
    parts = [_page(f"{title}:", "", rows) for title, rows in shown.items() if rows]
    parts.append(
        "--env.help NAME explains one in full, such as group_size or openai.base_url"
        + ("." if every else "; --help all lists all.")
    )
    return "\n\n".join(parts)


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
    """Explain one setting; `estimator_params.gamma` is a parameter of the estimator."""
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
    return _page(f"--{section.section}.{field}", known[field].description or "", section.help_rows(field))


def own_settings(env_cls: type[AgentEnv]) -> tuple[AgentEnvConfig, Any]:
    """Return the config and the server configs of `config_init`."""
    where = f"{env_cls.__name__}.config_init"
    try:
        given: Any = env_cls.config_init()
    except ValidationError as error:
        raise ConfigError(f"{where}: {explain(error, {}, '')}") from None
    if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], AgentEnvConfig)):  # pyright: ignore[reportUnknownArgumentType]  # user code
        raise ConfigError(f"{where} gave {given!r:.200}; give (AgentEnvConfig(…), [ServerConfig(…)])")
    return cast("tuple[AgentEnvConfig, Any]", given)
