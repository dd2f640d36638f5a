"""`turnwise new` and `turnwise list`: a folder with a new environment, and the environments that exist."""

import importlib.util
import keyword
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

import click

from environments.run.loading import SHIPPED, installed_environments
from tools.errors import ConfigError
from tools.extras import OWN_PACKAGES
from tools.plain_text import one_line

KINDS: Mapping[str, str] = {
    "turns": "Make files from a list in a terminal; each turn earns what it got right.",
    "scalar": "Answer a question with a calculator; one reward at the end.",
    "chat": "Help a customer in a chat; a question that brings out a fact earns a turn reward.",
    "game": "Find a secret number; each guess earns the information that it gave.",
    "sql": "Answer a question from a database; the query that finds the answer earns a turn reward.",
    "judge": "Write a slogan in two drafts; a judge scores each of them.",
    "agent": "Count boxes with an agent that owns its loop; each shelf that it counts earns a turn reward.",
}
_TEMPLATES = files("turnwise").joinpath("templates")
_NAME = re.compile(r"[A-Za-z](\w*[A-Za-z0-9])?", re.ASCII)
_LONGEST = 60


@click.command("new")
@click.argument("name")
@click.option(
    "--kind",
    type=click.Choice(list(KINDS)),
    default="turns",
    show_default=True,
    help="turns: tools, a sandbox and a reward for every turn. scalar: one reward at the end. chat: a "
    "simulated user answers. game: a world with a state. sql: a tool of its own on a database. judge: a "
    "second model scores. agent: an agent that owns its loop is recorded.",
)
def new_command(name: str, kind: str) -> None:
    """Make a folder NAME with an environment that runs: code, data, test and README.

    NAME may be a path; its last part is the name of the package and of the environment.
    """
    folder = Path(name)
    made = make_environment(folder, kind)
    click.echo(f"{folder}: {', '.join(map(str, made))}")
    click.echo(f"\nNext:\n  turnwise check {folder}\n  turnwise process {folder}")
    click.echo(f"  turnwise view {folder.name}/default\n  python -m pytest {folder}")
    click.echo(f"Then change {folder / folder.name / 'env.py'}.")


@click.command("list")
def list_command() -> None:
    """Name the environments: those that are shipped, and those that installed packages register.

    No code of a package runs. A shipped environment takes precedence over one of the same name.
    """
    installed = installed_environments()
    names = [one_line(each.name) for each in installed]
    width = max(map(len, [*SHIPPED, *names]))
    for name, description in SHIPPED.items():
        click.echo(f"{name:<{width}}  {description}")
    times = Counter(each.name for each in installed)
    for name, each in zip(names, installed, strict=True):
        of, instead = f"[{one_line(each.package)}]", f"give {one_line(each.target)}"
        if each.name in SHIPPED:
            text = f"{of} hidden by the shipped one of that name; {instead}"
        elif times[each.name] > 1:
            text = f"{of} one of {times[each.name]} packages that have this name; {instead}"
        else:
            text = f"{one_line(each.summary)} {of}".strip()
        click.echo(f"{name:<{width}}  {text}")


def make_environment(folder: Path, kind: str) -> list[Path]:
    """Write a new environment of a kind of `KINDS`, named like its folder; return the paths of its files."""
    name = folder.name
    if os.path.lexists(folder):
        raise ConfigError(f"{folder} is there already; give another name, nothing is overwritten")
    _check_name(name)
    templates = {
        f"{name}/__init__.py": "package.py.template",
        f"{name}/env.py": f"{kind}/env.py.template",
        f"{name}/items.jsonl": f"{kind}/items.jsonl",
        f"test_{name}.py": "test.py.template",
        "README.md": "README.md.template",
        "pyproject.toml": "pyproject.toml.template",
    }
    # Its suffix is in no template, so that the class shadows no name that the file imports.
    class_name = "".join(part[:1].upper() + part[1:] for part in name.split("_")) + "Environment"
    written: dict[Path, str] = {}
    for path, template in templates.items():
        text = _TEMPLATES.joinpath(template).read_text("utf-8").replace("MY_SUMMARY", KINDS[kind])
        written[Path(path)] = text.replace("MyEnv", class_name).replace("my_env", name)
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"cannot make {folder}: {error.strerror or error}") from None
    try:
        for path, text in written.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise ConfigError(f"cannot write into {folder}: {error.strerror or error}") from None
    return list(written)


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        raise ConfigError(
            f"{name!r:.100} cannot be the name of a Python package; give up to {_LONGEST} letters, digits "
            f"and underscores, a letter first, such as my_env"
        )
    if keyword.iskeyword(name) or keyword.issoftkeyword(name):
        raise ConfigError(f"{name!r} is a word of Python's own; give another name, such as {name}_env")
    if name in SHIPPED:
        raise ConfigError(f"{name!r} is an environment that is shipped; give another name, such as my_{name}")
    if name in OWN_PACKAGES:
        raise ConfigError(f"{name!r} is a package of Turnwise's own; give another name, such as my_{name}")
    if name in sys.stdlib_module_names or importlib.util.find_spec(name) is not None:
        raise ConfigError(
            f"{name!r} is the name of a module that Python has already, and one of the two would hide the "
            f"other; give another name, such as {name}_env"
        )
