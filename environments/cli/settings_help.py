"""What `--help` says of settings, in groups and shortly, and `--env.help NAME` of one of them in full."""

import textwrap
from collections.abc import Sequence
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import click
from pydantic.fields import FieldInfo

from environments.cli.settings import alternatives, flag_help, nearest
from environments.cli.settings_groups import FIRST, grouped
from environments.config import AgentEnvConfig
from environments.config_section import Section
from environments.credit import ESTIMATORS, PRESETS, Parameter, describe
from environments.inference.endpoint import without_credentials
from tools.errors import ConfigError

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
    return "\n".join([*lines, "", "  --env.estimator chooses another; `turnwise estimators` describes all."])


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
