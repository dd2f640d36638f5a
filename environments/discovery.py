"""From what a user types to an environment class: a shipped name, a file or a module."""

import difflib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from environments.base_env import AgentEnv
from environments.shipped import SHIPPED
from tools.errors import ConfigError, TurnwiseError

Loaded = TypeVar("Loaded")

_OWN_PACKAGES = ("environments", "tools")


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
        module = _load_file(Path(source))
    elif "." in source or class_name:
        module = _load_module(source)
    else:
        raise ConfigError(_unknown(given))
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


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"no file {path}; an environment is a shipped name or path/to/file.py:Class")
    path = path.resolve()
    _append_to_path(path.parent)
    known = importlib.util.find_spec(path.stem) if path.stem.isidentifier() else None
    if known is not None and known.origin == str(path):
        # By its own name, so that files next to it may import it too.
        return _run(lambda: importlib.import_module(path.stem), path)
    spec = importlib.util.spec_from_file_location(f"turnwise_file_{path.stem}", path)
    loader = None if spec is None else spec.loader
    if spec is None or loader is None:
        raise ConfigError(f"cannot load {path} as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    _run(lambda: loader.exec_module(module), path)
    return module


def _load_module(name: str) -> ModuleType:
    _append_to_path(Path.cwd())
    try:
        known = importlib.util.find_spec(name)
    except (ModuleNotFoundError, ValueError):
        known = None
    if known is None or known.origin is None:
        raise ConfigError(_unknown(name))
    return _run(lambda: importlib.import_module(name), Path(known.origin))


def _append_to_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _run(load: Callable[[], Loaded], path: Path) -> Loaded:
    """Run a user's code; whatever it raises is theirs to mend, told in one line."""
    try:
        return load()
    except TurnwiseError:
        raise
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        rival = path.parent / package
        if package in _OWN_PACKAGES and (rival.is_dir() or rival.with_suffix(".py").is_file()):
            raise ConfigError(
                f"{path.name} imports {error.name!r}, but {package!r} is the name of Turnwise's own package: "
                f"rename {rival if rival.is_dir() else rival.with_suffix('.py')}"
            ) from error
        raise ConfigError(f"{path}{_line_of(error, path)}: no module named {error.name!r}") from error
    except SyntaxError as error:
        raise ConfigError(f"{error.filename}, line {error.lineno}: {error.msg}") from error
    except Exception as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(f"{path}{_line_of(error, path)}: {what}") from error


def _line_of(error: Exception, path: Path) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    return f", line {lines[-1]}" if lines else ""


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
