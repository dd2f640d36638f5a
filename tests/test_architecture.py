"""What docs/architecture.md says of the code is so."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/architecture.md"
PACKAGES = ("turnwise", "environments", "tools")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
MODULE = re.compile(r"^(environments|tools|turnwise)(\.\w+)+(:\w+)?$")
WAYS_UP = {("environments.base_env", "turnwise.cli.main")}
"""Imports by name that may go up: `MyEnv.cli()`."""


def contracts():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]


def layers_of(container):
    return next(
        [re.split(r"\s*[|:]\s*", layer) for layer in contract["layers"]]
        for contract in contracts()
        if contract["type"] == "layers" and contract.get("containers") == [container]
    )


def module_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def rank(module):
    """How high a module stands: turnwise above environments above tools, then its layer."""
    package, _, rest = module.partition(".")
    height = -PACKAGES.index(package)
    layers = layers_of(package)
    for depth, layer in enumerate(layers):
        if rest.partition(".")[0] in layer:
            return (height, len(layers) - depth)
    return (height, len(layers) + 1)  # the package itself


@pytest.mark.parametrize("package", ["turnwise", "environments", "tools"])
def test_the_layers_of_the_page_are_those_that_are_enforced(package):
    block = re.search(r"```text\nturnwise\n.*?```", PAGE.read_text(), re.DOTALL)[0]
    lines = re.search(rf"^{package}\n((?:  .*\n)+)", block, re.MULTILINE)[1].splitlines()
    shown = [set(re.split(r"\s{2,}", line.strip())[0].split(" | ")) for line in lines]
    assert shown == [set(layer) for layer in layers_of(package)]


KNOWN = {module_of(path) for path in SOURCES}


def strings_that_name_modules():
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            text = node.value if isinstance(node, ast.Constant) else None
            # `turnwise.turn` may be an attribute of a span.
            if (
                isinstance(text, str)
                and MODULE.match(text)
                and not (text.startswith("turnwise.") and text.partition(":")[0] not in KNOWN)
            ):
                yield module_of(path), text.partition(":")[0]


def test_every_string_that_looks_like_a_module_names_one():
    named = {name for _, name in strings_that_name_modules()}
    assert sorted(name for name in named if name not in KNOWN and name.rpartition(".")[0] not in KNOWN) == []


def test_no_module_is_imported_upward_by_a_string():
    upward = {
        (importer, imported)
        for importer, imported in strings_that_name_modules()
        if importer.split(".")[0] != "turnwise" and rank(imported) > rank(importer)
    }
    assert upward == WAYS_UP


def words_of(name):
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def word_table(column):
    table = re.search(r"\| word \|.*?\n\n", PAGE.read_text(), re.DOTALL)[0]
    cells = [line.split("|")[column] for line in table.strip().splitlines()[2:]]
    return {word.strip() for cell in cells for word in cell.split(",") if word.strip()}


def test_every_word_of_the_table_names_something_in_the_code():
    table = re.search(r"\| word \|.*?\n\n", PAGE.read_text(), re.DOTALL)[0]
    listed = {
        part.strip().lower()
        for row in table.strip().splitlines()[2:]
        for part in row.split("|")[1].split(",")
    }
    code = " ".join(path.read_text().lower() for path in SOURCES)
    assert [word for word in listed if word not in code] == []


def test_no_module_class_or_function_has_a_name_with_a_word_that_another_stands_for():
    names = {module_of(path) for path in SOURCES}
    functions = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                names.add(node.name)
            elif (
                isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and path.parent.name != "conformance"
            ):
                functions.add(node.name)  # a conformance check is named by its claim, for ever
    banned = word_table(3)
    # Functions may be about links between files.
    assert sorted(name for name in names if words_of(name) & banned) == []
    assert sorted(name for name in functions if words_of(name) & banned - {"link"}) == []


def test_no_module_is_named_like_one_of_the_standard_library():
    assert [path for path in SOURCES if path.stem in sys.stdlib_module_names] == []


def test_every_guarantee_names_tests_that_are_there():
    page = (ROOT / "tests/README.md").read_text()
    table = page.partition("## What must not be lost")[2].partition("## Injected faults")[0]
    listed = re.findall(r"`([\w/]+\.py)`", table)
    assert len(listed) > 60
    assert [path for path in listed if "def test_" not in (ROOT / "tests" / path).read_text()] == []
