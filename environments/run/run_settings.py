"""`config.yaml` of a run: every setting that shapes it, where each came from, and how two of them differ."""

import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any, cast

import yaml
from pydantic import SecretBytes, SecretStr
from pydantic_core import PydanticSerializationError

from environments.base_env import AgentEnv
from environments.config_section import Section
from environments.inference.endpoint import shown_url, without_credentials

Sources = Mapping[str, str]
"""Where settings came from, by `section.name`; a setting that is not among them is the class's."""
COMMAND_LINE = "command line"

_OF_ONE_COMMAND = frozenset({
    "data_path_to_save_groups", "data_dir_to_save_evals", "outbox_path", "outbox_groups", "run_name", "fresh",
    "accept", "use_wandb", "use_trackio", "wandb_name", "profile",
})  # fmt: skip
"""Where this run is written and shown; another that takes its settings says that itself."""
_NO_PART = frozenset({"openai.base_url", "openai.num_max_requests_at_once", "openai.ca_file"})
_SECRET_NAME = re.compile(r".*(key|secret|password|passwd|credentials?|authorization)", re.IGNORECASE)
_TOKEN_NAME = re.compile(r".*[_-]?(token|auth)", re.IGNORECASE)
_SHORTEST_TOKEN = 12
"""In characters: a token that lets somebody in, and not one of a text, such as `</s>`."""
_HIDDEN = "**********"
"""What pydantic shows of a `SecretStr`."""


class _OneLine(yaml.SafeDumper):
    """Every value on a line of its own, as a comment follows it."""


def _text_node(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = '"' if len(text.splitlines()) > 1 else None
    return yaml.ScalarNode("tag:yaml.org,2002:str", text, style=style)


_OneLine.add_representer(str, _text_node)


def settings_text(env: AgentEnv, sources: Sources | None) -> str:
    """Every setting of an environment as YAML that `--config` takes; one that may be a secret is left out.

    Args:
        env: the environment.
        sources: where its settings came from; `None`: from the program that made it.
    """
    of_a_program = sources is None
    known = sources or {}

    def source_of(section: Section, name: str) -> str:
        label = known.get(f"{section.section}.{name}")
        if of_a_program and name in section.model_fields_set:
            label = "program"
        return label or "class default"

    lines = ["env:", *_lines(env.config, source_of)]
    if len(env.servers) == 1:
        lines += ["openai:", *_lines(env.servers[0], source_of)]
    elif env.servers:
        lines.append("openai:")
        for server in env.servers:
            first, *rest = _lines(server, source_of)
            lines += [f"- {first.lstrip()}", *rest]
    for server in env.second_servers:
        lines += [f"{server.section}:", *_lines(server, source_of)]
    return "\n".join(lines) + "\n"


def changed_settings(before: str, now: str, counted: Container[str]) -> list[str]:
    """Lines of a diff of two texts of settings; of the environment's own, only those that are `counted`."""
    was, is_ = _values(before), _values(now)
    if not was:
        return []
    lines: list[str] = []
    for label in [*was, *(label for label in is_ if label not in was)]:
        section, _, name = label.partition(".")
        counts = name in counted if section == "env" else label not in _NO_PART
        if counts and was.get(label) != is_.get(label):
            lines += [
                f"{sign}{label}: {side[label]}" for sign, side in (("-", was), ("+", is_)) if label in side
            ]
    return lines


def _lines(section: Section, source_of: Callable[[Section, str], str]) -> Iterator[str]:
    # The first line of a server in a list has to be a setting, and no comment.
    left_out: list[str] = []
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if name in _OF_ONE_COMMAND:
            continue
        written = _written(section, name, shown=field.repr)
        if written is not None:
            yield f"  {written}  # {source_of(section, name)}"
        elif value != field.default:
            left_out.append(f"  # {name}: not written, since it is or may hold a secret")
    yield from left_out


def _written(section: Section, name: str, *, shown: bool) -> str | None:
    """`name: value`, or `None` for what may be a secret or has no form in YAML."""
    value = getattr(section, name)
    is_address = name.endswith("_url") and isinstance(value, str) and shown_url(value) == value
    if not (shown or is_address) or _is_secret(name, value):
        return None
    try:
        plain = section.model_dump(mode="json", include={name})[name]
        text: str = yaml.dump(
            {name: plain},
            Dumper=_OneLine,
            default_flow_style=True,
            width=float("inf"),
            allow_unicode=True,
            sort_keys=False,
        )
    except (PydanticSerializationError, yaml.YAMLError, ValueError, RecursionError):
        return None
    return None if _HIDDEN in text else text.strip()[1:-1]


def _is_secret(name: str, value: object) -> bool:
    if isinstance(value, SecretStr | SecretBytes):
        return True
    if isinstance(value, Mapping):
        return any(_is_secret(str(key), each) for key, each in cast("Mapping[Any, Any]", value).items())
    if isinstance(value, list | tuple | set | frozenset):
        return any(_is_secret(name, each) for each in cast("Sequence[Any]", value))
    if not isinstance(value, str | bytes):
        return False
    if _SECRET_NAME.fullmatch(name) and value not in ("", "none"):
        return True
    text = value if isinstance(value, str) else value.decode("utf-8", "replace")
    is_token = len(text) >= _SHORTEST_TOKEN and _TOKEN_NAME.fullmatch(name) is not None
    return is_token or without_credentials(text) != text


def _values(text: str) -> dict[str, str]:
    """The settings of a text by `section.name`; none where it is damaged."""
    try:
        loaded: Any = yaml.safe_load(text)
        sections = cast("dict[str, Any]", loaded) if isinstance(loaded, dict) else {}
        named = {
            f"{section}{index or ''}.{name}": repr(value)
            for section, given in sections.items()
            for index, each in enumerate(cast("list[Any]", given if isinstance(given, list) else [given]))
            for name, value in (cast("dict[str, Any]", each) if isinstance(each, dict) else {}).items()
        }
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}
    return named
