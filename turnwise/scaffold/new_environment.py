"""A new environment: a folder with package, data, test and README, that runs as it is."""

import importlib.util
import keyword
import os
import re
import shutil
import sys
from collections.abc import Container, Mapping
from importlib.resources import files
from pathlib import Path

from tools.errors import ConfigError
from tools.extras import OWN_PACKAGES

KINDS: Mapping[str, str] = {
    "turns": "Make files from a list in a terminal; each turn earns what it got right.",
    "scalar": "Answer a question with a calculator; one reward at the end.",
    "chat": "Help a customer in a chat; a question that brings out a fact earns a turn reward.",
    "game": "Find a secret number; each guess earns what it told.",
    "judge": "Write a slogan in two drafts; a judge scores each of them.",
    "agent": "Count boxes with an agent that owns its loop; each shelf that it counts earns a turn reward.",
}
"""What an environment of each kind is at first."""
_TEMPLATES = files("turnwise.scaffold").joinpath("templates")
_NAME = re.compile(r"[A-Za-z](\w*[A-Za-z0-9])?", re.ASCII)
_LONGEST = 60


def make_environment(folder: Path, kind: str, *, shipped: Container[str]) -> list[Path]:
    """Write a new environment, whose name is that of its folder; missing parent folders are made.

    Args:
        folder: nothing may be there yet.
        kind: a key of `KINDS`.
        shipped: names that are taken.

    Returns:
        The files, by their paths in the folder.

    Raises:
        ConfigError: the name cannot be that of a package, the folder is there, or it cannot be written.
    """
    name = folder.name
    if os.path.lexists(folder):
        raise ConfigError(f"{folder} is there already; give another name, nothing is overwritten")
    refuse_name(name, shipped)
    written = {path: _filled(text, name, KINDS[kind]) for path, text in _texts(name, kind).items()}
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


def refuse_name(name: str, shipped: Container[str]) -> None:
    """Raise ConfigError for what cannot be the name of a package of the user's, and of its environment."""
    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        raise ConfigError(
            f"{name!r:.100} cannot be the name of a Python package; give up to {_LONGEST} letters, digits "
            f"and underscores, a letter first, such as my_env"
        )
    if keyword.iskeyword(name) or keyword.issoftkeyword(name):
        raise ConfigError(f"{name!r} is a word of Python's own; give another name, such as {name}_env")
    if name in shipped:
        raise ConfigError(f"{name!r} is an environment that is shipped; give another name, such as my_{name}")
    if name in OWN_PACKAGES:
        raise ConfigError(f"{name!r} is a package of Turnwise's own; give another name, such as my_{name}")
    if name in sys.stdlib_module_names or importlib.util.find_spec(name) is not None:
        raise ConfigError(
            f"{name!r} is the name of a module that Python has already, and one of the two would hide the "
            f"other; give another name, such as {name}_env"
        )


def _texts(name: str, kind: str) -> dict[Path, str]:
    """The templates of a kind, by where they go."""
    places = {
        f"{name}/__init__.py": "package.py.template",
        f"{name}/env.py": f"{kind}/env.py.template",
        f"{name}/items.jsonl": f"{kind}/items.jsonl",
        f"test_{name}.py": "test.py.template",
        "README.md": "README.md.template",
        "pyproject.toml": "pyproject.toml.template",
    }
    return {
        Path(place): _TEMPLATES.joinpath(template).read_text("utf-8") for place, template in places.items()
    }


def _filled(text: str, name: str, summary: str) -> str:
    # With an end that no name in a template has, the class hides nothing that the file imports.
    class_name = "".join(part[:1].upper() + part[1:] for part in name.split("_")) + "Environment"
    return text.replace("MY_SUMMARY", summary).replace("MyEnv", class_name).replace("my_env", name)
