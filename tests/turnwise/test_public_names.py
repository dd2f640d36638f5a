import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import turnwise

ROOT = Path(__file__).resolve().parents[2]
SUBMODULES = [f"turnwise.{name}" for name in ("condensers", "credit", "records", "rewards")]
NAMES = set(turnwise.__all__) - {"__version__"}


def type_checked_imports():
    """Each name as a type checker finds it: (module, name there)."""
    tree = ast.parse(Path(turnwise.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    return {
        alias.asname or alias.name: (line.module, alias.name) for line in block.body for alias in line.names
    }


def test_a_type_checker_sees_the_names_that_python_loads_from_the_same_modules():
    assert {name: module for name, (module, _) in type_checked_imports().items()} == turnwise._MODULES
    assert set(turnwise._MODULES) == NAMES


def test_a_name_is_the_object_that_a_type_checker_takes_it_for():
    for name, (module, there) in type_checked_imports().items():
        assert getattr(turnwise, name) is getattr(sys.modules[module], there)


def test_the_public_names_are_sorted_and_differ():
    assert turnwise.__all__ == sorted(set(turnwise.__all__))


def test_every_name_that_the_documentation_imports_is_public():
    pages = [
        ROOT / "README.md",
        *(ROOT / "docs").glob("*.md"),
        *ROOT.glob("environments/shipped/*/*.md"),
    ]
    imports = re.compile(r"^from (turnwise(?!\.lab)[.\w]*) import (?:\(([^)]*)\)|(.*))$", re.MULTILINE)
    found = [(module, a or b) for page in pages for module, a, b in imports.findall(page.read_text())]
    named = {(module, name) for module, names in found for name in re.findall(r"\w+", names)}
    assert ("turnwise", "AgentEnv") in named
    assert [each for each in named if each[1] not in import_module(each[0]).__all__] == []


def test_a_name_stands_in_one_public_module():
    modules = [turnwise, *map(import_module, SUBMODULES)]
    names = [name for module in modules for name in module.__all__]
    assert sorted(names) == sorted(set(names))
    assert all(hasattr(module, name) for module in modules for name in module.__all__)


def test_completion_offers_names_that_are_not_loaded_yet():
    code = "import turnwise; print(set(turnwise.__all__) <= set(dir(turnwise)))"
    assert python("-c", code) == "True\n"


def test_a_name_that_is_not_public_is_no_attribute():
    with pytest.raises(AttributeError, match="no attribute 'Agent'"):
        turnwise.Agent  # noqa: B018


def test_importing_turnwise_loads_none_of_its_packages():
    code = (
        "import sys, turnwise; print([n for n in ('environments', 'tools', 'pydantic') if n in sys.modules])"
    )
    assert python("-c", code) == "[]\n"


def python(*args):
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, check=True).stdout
