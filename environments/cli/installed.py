"""Environments of installed packages, found by their entry points: for their names no code of theirs runs."""

import ast
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import Distribution, EntryPoint, distributions
from pathlib import Path

from environments.inference.server_text import one_line
from environments.python_syntax import parse_python

GROUP = "turnwise.environments"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledEnvironment:
    """An environment that a package registers."""

    name: str
    package: str
    """The distribution that has it."""
    target: str
    """`module:Class`, as it was registered."""
    summary: str
    """The distribution's own line; empty where it has none."""


def installed_environments() -> list[InstalledEnvironment]:
    """What packages register, sorted by name; two packages may give the same one."""
    found: dict[tuple[str, str], InstalledEnvironment] = {}
    for distribution in distributions():
        for each in _registered(distribution):
            # What stands earlier on Python's path hides another copy of the same package.
            found.setdefault((each.name, each.package), each)
    return [found[key] for key in sorted(found)]


def described(environment: InstalledEnvironment) -> tuple[str, str | None]:
    """One line about an environment, and what keeps it from being loaded, as far as its text says."""
    try:
        docstring = _docstring_at(environment.target)
    except (ValueError, LookupError) as error:
        return "", one_line(str(error))
    except Exception as error:  # noqa: BLE001  # import hooks of other packages are asked, and no list breaks
        return "", one_line(f"{type(error).__name__}: {error}")
    return one_line(docstring or environment.summary), None


def _registered(distribution: Distribution) -> Iterator[InstalledEnvironment]:
    """Those of one package; one with metadata that cannot be read registers nothing."""
    try:
        entries: list[EntryPoint] = [each for each in distribution.entry_points if each.group == GROUP]
        if not entries:
            return
        package, summary = str(distribution.metadata["Name"]), distribution.metadata["Summary"]
    except Exception:  # noqa: BLE001  # of any package on this machine
        return
    for entry in entries:
        yield InstalledEnvironment(
            name=entry.name,
            package=package,
            target=entry.value.partition("[")[0].strip(),  # what follows names extras
            summary=str(summary or "").partition("\n")[0],
        )


def _docstring_at(target: str) -> str:
    """The first line of a class's docstring, read from its file.

    Raises:
        ValueError: it is no `module:Class`, or its file is not Python.
        LookupError: there is no such module, or the class is not in it.
    """
    module, colon, name = target.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
        raise ValueError(f"{target!r} is not module:Class")
    origin = _spec(module).origin
    if origin is None or not origin.endswith(".py"):
        return ""
    try:
        tree = parse_python(Path(origin).read_bytes())
    except (SyntaxError, OSError) as error:
        raise ValueError(f"{origin}: {error}") from None
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return (ast.get_docstring(node) or "").partition("\n")[0]
    if name.partition(".")[0] not in _names(tree):
        raise LookupError(f"{module} has no {name}")
    return ""


def _spec(module: str) -> ModuleSpec:
    """Where a module is; packages around it are not run."""
    parts = module.split(".")
    spec = importlib.util.find_spec(parts[0])
    for depth in range(1, len(parts)):
        if spec is None:
            break
        spec = PathFinder.find_spec(".".join(parts[: depth + 1]), spec.submodule_search_locations or [])
    if spec is None:
        raise LookupError(f"no module {module}")
    return spec


def _names(tree: ast.Module) -> set[str]:
    """Every name that a module's text has; what is made by other means is not known."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
    return names
