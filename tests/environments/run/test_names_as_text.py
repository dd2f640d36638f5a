"""Names that stand as text: what they name is there, so that a move cannot make them silently wrong."""

import importlib
import re
import tomllib
from pathlib import Path

import click
import pytest

from environments.rollout.lifecycle import hook_checks
from environments.run.loading import SHIPPED, shipped_target
from environments.run.workers import worker_process
from scripts import mutate
from tools.extras import OWN_FOLDERS, OWN_PACKAGES
from turnwise.cli import main

ROOT = Path(__file__).parents[3]


def test_our_own_packages_are_those_of_the_wheel():
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert tuple(wheel["packages"]) == OWN_PACKAGES


def test_frames_and_classes_of_ours_are_told_from_those_of_users():
    assert tuple(f"{ROOT / name}/" for name in OWN_PACKAGES) == OWN_FOLDERS
    modules = map(importlib.import_module, ("environments.base_env", "tools.files", "turnwise.cli"))
    assert all(each.__file__.startswith(OWN_FOLDERS) for each in modules)
    assert hook_checks.OWN_PACKAGES == OWN_PACKAGES


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_name_is_the_name_of_its_class(name):
    module, class_name = shipped_target(name).split(":")
    assert getattr(importlib.import_module(module), class_name).name == name


def test_every_command_is_a_function_of_its_module():
    commands = [*main.COMMANDS.values(), *main.COMMANDS["doctor"].load().lazy.values()]
    assert len(commands) > 10
    assert all(isinstance(each.load(), click.Command) for each in commands)


def test_a_worker_starts_with_a_function_that_is_there():
    module, function = re.search(r"from (\S+) import (\w+)", worker_process._START).groups()
    assert callable(getattr(importlib.import_module(module), function))


def test_what_is_mutated_and_the_tests_near_it_are_there():
    named = [*mutate.COPIED, *mutate.WALKED, *(test for tests in mutate.FURTHER.values() for test in tests)]
    assert [name for name in named if not (ROOT / name).exists()] == []
    walked = mutate.walked(ROOT)
    assert [name for name in mutate.FURTHER if not any(each.startswith(name) for each in walked)] == []
    assert not [name for name in mutate.WALKED if not any(each.startswith(name) for each in walked)]


def test_environments_that_configurations_and_pages_name_are_there():
    pages = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("docs/**/*.yaml"), *ROOT.glob("environments/**/*.md")]
    pages += [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "tests/README.md"]
    named = {
        (page.name, path)
        for page in pages
        for path in re.findall(
            r"`((?:environments|tools|turnwise|scripts)/[\w/.]+(?:\.\w+|/))`", page.read_text()
        )
        if "NAME" not in path
    }
    assert len(named) > 20
    roots = (ROOT, ROOT / "tests")  # the table of guarantees names tests from their folder on
    assert sorted(each for each in named if not any((root / each[1]).exists() for root in roots)) == []
