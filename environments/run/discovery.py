"""Find an environment class by what a user types: a shipped or installed name, folder, file or module."""

import inspect
import os
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

from environments.base_env import AgentEnv
from environments.run.loading import (
    GROUP,
    SHIPPED,
    append_to_path,
    installed_environments,
    load_file,
    load_module,
    shipped_target,
)
from tools.errors import ConfigError
from tools.plain_text import did_you_mean

_PROJECT = "pyproject.toml"


def find_environment(given: str) -> type[AgentEnv]:
    """Return the class that `given` names.

    `given` is, by precedence, a shipped name (`code_debug`), a project folder or an installed package that
    registers an environment, `path/to/file.py[:Class]` or `package.module[:Class]`. A file's folder, or the
    current one for a module, is appended to `sys.path`, so that it never hides Turnwise's packages.

    Raises ConfigError if the name is unknown or ambiguous, or its code fails.
    """
    if given in SHIPPED:
        given = shipped_target(given)
    elif given and os.path.isfile(Path(given) / _PROJECT):  # noqa: PTH113  # `is_file` may raise
        return _find_in_folder(Path(given))
    source, _, class_name = given.rpartition(":") if ":" in given else (given, "", "")
    if source.endswith(".py"):
        module = load_file(source)
    else:
        is_path = "/" in source or source.startswith(".")
        module = load_module(source) if ("." in source or class_name) and not is_path else None
    if module is not None:
        return _pick(module, class_name, source)
    known = installed_environments()
    found = [each for each in known if each.name == given]
    if len(found) > 1:
        targets = " or ".join(each.target for each in found)
        packages = ", ".join(each.package for each in found)
        raise ConfigError(f"{given!r} is an environment of {len(found)} packages, {packages}; give {targets}")
    if not found and source in SHIPPED:
        raise ConfigError(
            f"{source!r} is an environment and takes no class; give it alone, or path/to/file.py:Class"
        )
    if not found:
        names = sorted({*SHIPPED, *(each.name for each in known)})
        raise ConfigError(
            f"no environment {source!r}{did_you_mean(source, names)}; choose one of {', '.join(names)}, "
            f"or give a folder of `turnwise new`, or path/to/file.py:Class"
        )
    return _load_registered(found[0].target, f"environment {given!r} of the package {found[0].package}")


def _find_in_folder(folder: Path) -> type[AgentEnv]:
    path = folder / _PROJECT
    try:
        project: Any = tomllib.loads(path.read_text("utf-8"))
        registered: Any = project["project"]["entry-points"][GROUP]
        targets = {str(name): str(target) for name, target in registered.items()}
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    except (LookupError, TypeError, AttributeError):
        raise ConfigError(
            f'{path} registers no environment; write [project.entry-points."{GROUP}"] with NAME = '
            f'"module:Class", or give path/to/file.py:Class'
        ) from None
    own = folder.resolve().name
    if own not in targets and len(targets) != 1:
        names = ", ".join(sorted(targets)) or "none"
        raise ConfigError(f"{path} registers {names} of the group {GROUP}; give path/to/file.py:Class")
    name = own if own in targets else next(iter(targets))
    append_to_path(folder.resolve())
    found = _load_registered(targets[name], f"environment {name!r} of {path}")
    file = getattr(sys.modules.get(targets[name].partition(":")[0]), "__file__", None)
    if file is not None and not Path(file).resolve().is_relative_to(folder.resolve()):
        raise ConfigError(
            f"environment {name!r} of {path}: Python finds it in {file}, where another copy is installed; "
            f"changes here would count for nothing: `pip install -e {folder}`, or uninstall that one"
        )
    return found


def _load_registered(target: str, where: str) -> type[AgentEnv]:
    source, _, class_name = target.partition(":")
    module = load_module(source) if source and class_name else None
    if module is None:
        raise ConfigError(
            f"{where} cannot be loaded: it is registered as {target!r}, and there is no such module"
        )
    return _pick(module, class_name, where)


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
