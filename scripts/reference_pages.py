"""Writes the reference pages of all settings and all commands.

python -m scripts.reference_pages
"""

import html
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from pydantic.fields import FieldInfo

from environments.config import (
    AgentEnvConfig,
    JudgeConfig,
    ReferenceConfig,
    Section,
    ServerConfig,
    SummariserConfig,
    UserConfig,
)
from turnwise.cli.main import COMMANDS, LazyGroup

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "reference"
SECTIONS: tuple[tuple[type[Section], str], ...] = (
    (AgentEnvConfig, "The environment"),
    (ServerConfig, "The model server"),
    (JudgeConfig, "The judge"),
    (UserConfig, "The simulated user"),
    (SummariserConfig, "The summariser"),
    (ReferenceConfig, "The reference"),
)
_BAR = "&#124;"


def settings_page() -> str:
    parts = ["# Settings", "On the command line, or in a YAML file (`--config`) in the section of that name."]
    for section, title in SECTIONS:
        parts.append(f"## {title}: `--{section.section}.NAME`")
        rows = ["| setting | type | default | |", "|---|---|---|---|"]
        rows += [_row(name, field) for name, field in section.model_fields.items()]
        parts.append("\n".join(rows))
    return "\n\n".join(parts) + "\n"


def commands_page() -> str:
    parts = ["# Commands"]
    group = LazyGroup(COMMANDS, name="turnwise")
    with click.Context(group, info_name="turnwise") as context:
        for name in COMMANDS:
            command = group.get_command(context, name)
            assert command is not None
            parts += _help(command, context, name)
    return "\n\n".join(parts) + "\n"


def _help(command: click.Command, parent: click.Context, name: str) -> Iterator[str]:
    with click.Context(command, info_name=name, parent=parent) as context:
        yield f"## `{context.command_path}`"
        yield f"```text\n{command.get_help(context)}\n```"
        if isinstance(command, click.Group):
            for inner in command.list_commands(context):
                found = command.get_command(context, inner)
                assert found is not None
                yield from _help(found, context, inner)


def _row(name: str, field: FieldInfo) -> str:
    bounds = ", ".join(_bound(each) for each in field.metadata if _bound(each))
    cells = [
        _code(name),
        _code(_type_text(field.annotation)) + (f" {bounds}" if bounds else ""),
        "" if field.is_required() else _code(str(field.get_default(call_default_factory=True))),
        (field.description or "").replace("|", _BAR),
    ]
    return f"| {' | '.join(cells)} |"


def _code(text: str) -> str:
    """Format code in a cell as HTML: Markdown would show the backslash of an escaped bar."""
    return f"<code>{html.escape(text).replace('|', _BAR)}</code>"


def _bound(constraint: Any) -> str:
    signs = (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))
    return " ".join(
        f"{sign} {getattr(constraint, name):g}" for name, sign in signs if hasattr(constraint, name)
    )


def _type_text(annotation: Any) -> str:
    return inspect.formatannotation(annotation).replace("typing.", "")


def main() -> None:
    (FOLDER / "settings.md").write_text(settings_page(), encoding="utf-8")
    (FOLDER / "commands.md").write_text(commands_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
