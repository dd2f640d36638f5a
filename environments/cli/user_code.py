"""Loading a file or module of the user's: whatever its code raises is told in one line."""

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from tools.errors import ConfigError, TurnwiseError

Loaded = TypeVar("Loaded")

_OWN_PACKAGES = ("environments", "tools")


def load(source: str) -> ModuleType:
    """Load `path/to/file.py` or `package.module`.

    Raises:
        ConfigError: there is none, or its code fails.
    """
    module = load_file(source) if source.endswith(".py") else load_module(source)
    if module is None:
        raise ConfigError(f"no module {source!r}; give path/to/file.py or package.module")
    return module


def load_file(name: str) -> ModuleType:
    """Run a file as a module; its folder goes to the end of Python's path.

    Raises:
        ConfigError: there is none, or its code fails.
    """
    if not Path(name).is_file():
        raise ConfigError(f"no file {name}")
    path = Path(name).resolve()
    append_to_path(path.parent)
    known = importlib.util.find_spec(path.stem) if path.stem.isidentifier() else None
    if known is not None and known.origin == str(path):
        # By its own name, so that files next to it may import it too.
        return run_code(lambda: importlib.import_module(path.stem), path)
    spec = importlib.util.spec_from_file_location(f"turnwise_file_{path.stem}", path)
    loader = None if spec is None else spec.loader
    if spec is None or loader is None:
        raise ConfigError(f"cannot load {path} as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    run_code(lambda: loader.exec_module(module), path)
    return module


def load_module(name: str) -> ModuleType | None:
    """Import a module, from the current folder too; `None` when there is none.

    Raises:
        ConfigError: its code fails.
    """
    append_to_path(Path.cwd())
    try:
        known = importlib.util.find_spec(name)
    except ValueError:
        known = None
    except ModuleNotFoundError as error:
        if error.name is not None and not f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(f"{name}: no module named {error.name!r}") from error
        known = None
    except Exception as error:
        # To find a module, the package around it is run.
        raise ConfigError(f"{name}: {type(error).__name__}: {error}") from error
    if known is None or known.origin is None:
        return None
    return run_code(lambda: importlib.import_module(name), Path(known.origin))


def append_to_path(folder: Path) -> None:
    """Let modules of a folder be found, after all others."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def run_code(load: Callable[[], Loaded], path: Path) -> Loaded:
    """Run a user's code, of a file; whatever it raises is theirs to mend, told in one line.

    Raises:
        ConfigError: it raised.
    """
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
    except (Exception, SystemExit) as error:  # one that exits as it is loaded has done nothing
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(f"{path}{_line_of(error, path)}: {what}") from error


def _line_of(error: BaseException, path: Path) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    return f", line {lines[-1]}" if lines else ""
