"""Prints public names without a docstring; `make check` fails if there are any.

Public names are the exports of `turnwise` and its submodules, hooks of environments, settings, and Protocols.
"""

import ast
import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("environments", "tools", "turnwise")
EXPORTS = ("turnwise", "turnwise.condensers", "turnwise.credit", "turnwise.records", "turnwise.rewards")


def find_exports() -> Iterator[str]:
    """Yield exported functions, classes and settings without a docstring."""
    for module in map(importlib.import_module, EXPORTS):
        for name in module.__all__:
            value: Any = getattr(module, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                text = vars(value).get("__doc__") or value.__doc__
                if not text or text.startswith(f"{name}("):  # the signature, which dataclasses add
                    yield f"{module.__name__}.{name}"
            for field, info in getattr(value, "model_fields", {}).items():
                if not info.description:
                    yield f"{module.__name__}.{name}.{field}"


def find_hooks() -> Iterator[str]:
    """Yield methods without a docstring that users override or call on an environment."""
    turnwise: Any = importlib.import_module("turnwise")
    for cls in (turnwise.AgentEnv, turnwise.TurnLevelRewardMixin):
        for name, value in inspect.getmembers(cls, inspect.isroutine):
            if not name.startswith("_") and not inspect.getdoc(value):
                yield f"{cls.__name__}.{name}"


def find_protocols(root: Path = ROOT) -> Iterator[str]:
    """Yield Protocols without a docstring, by file and line."""
    for path in sorted(file for package in PACKAGES for file in (root / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ClassDef) and not ast.get_docstring(node):
                bases = [ast.unparse(base).partition("[")[0] for base in node.bases]
                if "Protocol" in bases and not node.name.startswith("_"):
                    yield f"{path.relative_to(root)}:{node.lineno}: {node.name}"


def main() -> int:
    """Print the findings; return 1 if there are any."""
    found = [*find_exports(), *find_hooks(), *find_protocols()]
    sys.stdout.writelines(f"{name}: no docstring\n" for name in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
