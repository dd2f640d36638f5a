"""Load shipped and installed environments, files and modules by name.

Listing names imports nothing; any error of loaded code becomes a message of one line.
"""

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, EntryPoint, distributions
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from tools.errors import ConfigError, TurnwiseError
from tools.extras import OWN_PACKAGES

Loaded = TypeVar("Loaded")


def load(source: str) -> ModuleType:
    """Load `path/to/file.py` or `package.module`. Raises ConfigError if it is missing or its code fails."""
    module = load_file(source) if source.endswith(".py") else load_module(source)
    if module is None:
        raise ConfigError(f"no module {source!r}; give path/to/file.py or package.module")
    return module


def load_file(name: str) -> ModuleType:
    """Run a file as a module; its folder is appended to `sys.path`.

    Raises ConfigError if the file is missing or its code fails.
    """
    if not Path(name).is_file():
        raise ConfigError(f"no file {name}; give path/to/file.py or path/to/file.py:Class")
    path = Path(name).resolve()
    append_to_path(path.parent)
    known = importlib.util.find_spec(path.stem) if path.stem.isidentifier() else None
    if known is not None and known.origin == str(path):
        # Under its own name, so that files beside it can import it.
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
    """Import a module, from the current folder too; return None if it is missing.

    Raises ConfigError if its code fails.
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
        # `find_spec` runs the package that contains the module.
        raise ConfigError(f"{name}: {type(error).__name__}: {error}") from error
    if known is None or known.origin is None:
        return None
    return run_code(lambda: importlib.import_module(name), Path(known.origin))


def append_to_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def run_code(load: Callable[[], Loaded], path: Path) -> Loaded:
    """Run a user's code from a file.

    Raises ConfigError with one line about anything that the code raises.
    """
    try:
        return load()
    except TurnwiseError:
        raise
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        rival = path.parent / package
        if package in OWN_PACKAGES and (rival.is_dir() or rival.with_suffix(".py").is_file()):
            raise ConfigError(
                f"{path.name} imports {error.name!r}, but {package!r} is the name of Turnwise's own package: "
                f"rename {rival if rival.is_dir() else rival.with_suffix('.py')}"
            ) from error
        raise ConfigError(f"{path}{_line_of(error, path)}: no module named {error.name!r}") from error
    except SyntaxError as error:
        raise ConfigError(f"{error.filename}, line {error.lineno}: {error.msg}") from error
    except (Exception, SystemExit) as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(f"{path}{_line_of(error, path)}: {what}") from error


def _line_of(error: BaseException, path: Path) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    return f", line {lines[-1]}" if lines else ""


GROUP = "turnwise.environments"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledEnvironment:
    name: str
    package: str
    target: str
    summary: str


def installed_environments() -> list[InstalledEnvironment]:
    found: dict[tuple[str, str], InstalledEnvironment] = {}
    for distribution in distributions():
        for each in _registrations(distribution):
            # The first copy of a package on `sys.path` wins.
            found.setdefault((each.name, each.package), each)
    return [found[key] for key in sorted(found)]


def _registrations(distribution: Distribution) -> Iterator[InstalledEnvironment]:
    try:
        entries: list[EntryPoint] = [each for each in distribution.entry_points if each.group == GROUP]
        if not entries:
            return
        package, summary = str(distribution.metadata["Name"]), distribution.metadata["Summary"]
    except Exception:  # noqa: BLE001  # broken metadata of any package
        return
    for entry in entries:
        yield InstalledEnvironment(
            name=entry.name,
            package=package,
            target=entry.value.partition("[")[0].strip(),  # without extras
            summary=str(summary or "").partition("\n")[0],
        )


SHIPPED: Mapping[str, str] = {
    "code_debug": "Find and fix the bug in a Python function; a reward for every turn.",
    "harbor_tasks": "Tasks in Harbor's format, from a folder; their own tests judge in fresh machines.",
    "higher_lower": "Find a number from 1 to 7 in three guesses; a small language model learns it.",
    "judged_writing": "Write a short text and revise it; a judge scores every draft.",
    "long_math": "Audit a ledger longer than the window; what the context loses is lost.",
    "quiz": "Say the bigger of two numbers, eight times; a noisy judge; for small language models.",
    "retail": "Serve a shop's customer under a policy; the database at the end decides.",
    "sales_chat": "Sell in a chat: the customer answers, upvotes, buys or leaves; no tools.",
    "stations": "Press the right key at each sign; small enough to be learned in seconds.",
    "swe_tasks": "Fix a bug of a repository; hidden tests decide, those that begin to pass pay the turn.",
    "terminal_tasks": "Make a file with given content in a terminal; one scalar reward.",
    "word_guess": "Guess a word of five letters; each guess is answered letter by letter.",
}


def shipped_target(name: str) -> str:
    return f"environments.shipped.{name}:{name.title().replace('_', '')}Env"
