"""The settings files of the docs: each works for its environment, and says what each setting does."""

import re
from pathlib import Path

import pytest

from environments.run.discovery import find_environment
from environments.run.loading import SHIPPED
from turnwise.cli.env_command import EnvCall
from turnwise.cli.settings import Overrides, read_yaml

FILES = sorted((Path(__file__).resolve().parents[3] / "docs" / "configs").glob("*.yaml"))
EACH = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def test_the_files_are_those_of_shipped_environments():
    assert {path.stem for path in FILES} <= set(SHIPPED)
    assert {"code_debug", "long_math"} <= {path.stem for path in FILES}


@EACH
def test_every_setting_of_a_file_is_one_of_its_environment(path):
    file = read_yaml(path)
    call = EnvCall(env_cls=find_environment(path.stem), file=file, flags=Overrides())
    given = call.settings({})
    assert {name: getattr(given.env, name) for name in file.of("env")} == file.of("env")


@EACH
def test_every_setting_of_a_file_says_what_it_does(path):
    settings = [line for line in path.read_text().splitlines() if re.match(r" +\w+: \S", line)]
    assert len(settings) > 10
    assert [line for line in settings if " # " not in line] == []
