"""From what a user types to an environment class: a shipped name, a file or a module."""

import difflib
import inspect
from pathlib import Path
from types import ModuleType

from environments.base_env import AgentEnv
from environments.cli.shipped import SHIPPED
from environments.cli.user_code import load_file, load_module
from tools.errors import ConfigError


def find_environment(given: str) -> type[AgentEnv]:
    """The class that `given` names: `code_debug`, `path/to/file.py[:Class]` or `package.module[:Class]`.

    A file's folder, or the current one for a module, goes to the end of Python's path: it never hides
    Turnwise's own packages.

    Raises:
        ConfigError: nothing of that name, its code fails, or it holds no or several environments.
    """
    if given in SHIPPED:
        given = SHIPPED[given].target
    source, _, class_name = given.rpartition(":") if ":" in given else (given, "", "")
    if source.endswith(".py"):
        if not Path(source).is_file():
            raise ConfigError(f"no file {source}; an environment is a shipped name or path/to/file.py:Class")
        module = load_file(source)
    else:
        module = load_module(source) if "." in source or class_name else None
    if module is None:
        raise ConfigError(_unknown(source))
    return _pick(module, class_name, source)


def _unknown(given: str) -> str:
    if given in SHIPPED:
        return (
            f"{given!r} is an environment and takes no class; give {given!r} alone, or path/to/file.py:Class"
        )
    close = difflib.get_close_matches(given, SHIPPED, n=1)
    meant = f"; did you mean {close[0]!r}?" if close else ""
    names = ", ".join(sorted(SHIPPED))
    return f"no environment {given!r}{meant}; choose one of {names}, or give path/to/file.py:Class"


def _pick(module: ModuleType, class_name: str, source: str) -> type[AgentEnv]:
    found = {
        name: value
        for name, value in vars(module).items()
        if inspect.isclass(value) and issubclass(value, AgentEnv) and value.__module__ == module.__name__
    }
    if class_name in found:
        return found[class_name]
    given: object = getattr(module, class_name, None) if class_name else None
    if inspect.isclass(given) and issubclass(given, AgentEnv):
        return given
    names = ", ".join(sorted(found))
    if class_name:
        there = f"it has {names}" if names else "it has no subclass of AgentEnv"
        raise ConfigError(f"no environment {class_name!r} in {source}; {there}")
    if len(found) == 1:
        return next(iter(found.values()))
    if not found:
        raise ConfigError(f"{source} has no subclass of AgentEnv")
    raise ConfigError(f"{source} has several environments; name one of {names}, as in {source}:{min(found)}")
