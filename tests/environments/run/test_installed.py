"""Environments of installed packages: listed with whose they are, found by name, and none breaks a list."""

import sys

import pytest

from environments.run.discovery import find_environment
from environments.run.loading import SHIPPED
from tests.equipment.modules import forget_modules_of
from tests.tables import cases
from tools.errors import ConfigError
from turnwise.cli.main import main
from turnwise.cli.new import make_environment

ENV = """
from turnwise import AgentEnv

class Theirs(AgentEnv):
    name = "theirs"
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder on Python's path, as pip fills it."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])

    def install(package, entries, text="", summary=""):
        info = tmp_path / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\nSummary: {summary}\n"
        )
        (info / "entry_points.txt").write_text(entries)
        (tmp_path / f"{package}.py").write_text(text)

    yield install
    forget_modules_of(tmp_path)


def registered(name, target):
    return f"[turnwise.environments]\n{name} = {target}\n"


def listed(capsys):
    """The lines of the list after those that are shipped."""
    assert main(["list"]) == 0
    return capsys.readouterr().out.splitlines()[len(SHIPPED) :]


def test_an_installed_environment_is_found_by_its_name(site):
    site("their_pack", registered("theirs", "their_pack:Theirs"), ENV)
    assert find_environment("theirs").name == "theirs"
    with pytest.raises(ConfigError, match="did you mean 'theirs'"):
        find_environment("thiers")


def test_the_list_has_the_line_of_a_package_and_runs_none_of_its_code(site, capsys):
    target = registered("theirs", "their_pack:Theirs")
    site("their_pack", target, "raise SystemExit(3)\nclass Theirs: ...\n", "One\x1b[31m line.")
    (line,) = listed(capsys)
    assert "\x1b" not in line
    assert (line.split()[0], line.split()[-2:]) == ("theirs", ["line.", "[their_pack]"])
    assert "their_pack" not in sys.modules


def test_what_breaks_when_it_is_loaded_is_told_in_one_line(site, capsys):
    site("their_pack", registered("theirs", "their_pack:Theirs"), "class Theirs: ...\n1 / 0\n")
    assert main(["process", "theirs"]) == 2
    error = capsys.readouterr().err
    assert "ZeroDivisionError" in error
    assert error.count("\n") == 1


def test_metadata_that_cannot_be_read_breaks_nothing(site, capsys):
    site("their_pack", "[turnwise.environments]\nno equals sign\n")
    assert listed(capsys) == []
    with pytest.raises(ConfigError, match="no environment 'theirs'"):
        find_environment("theirs")


def test_a_name_of_two_packages_is_refused_with_both(site, capsys):
    for package in ("one_pack", "other_pack"):
        site(package, registered("theirs", f"{package}:Theirs"), ENV)
    assert all("one of 2 packages that have this name" in line for line in listed(capsys))
    with pytest.raises(
        ConfigError, match="2 packages, one_pack, other_pack; give one_pack:Theirs or other_pack"
    ):
        find_environment("theirs")


def test_a_folder_whose_changes_would_count_for_nothing_is_refused(tmp_path, monkeypatch):
    for place in ("here", "installed"):
        make_environment(tmp_path / place / "my_second", "scalar")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "installed" / "my_second")])
    with pytest.raises(ConfigError, match="another copy is installed"):
        find_environment(str(tmp_path / "here" / "my_second"))


@cases(
    ("text", "said"),
    [
        ("[project]\nname = 'x'\n", "registers no environment"),
        ("[project.entry-points]\n'turnwise.environments' = 3\n", "registers no environment"),
        ("[project.entry-points.'turnwise.environments']\n", "registers none"),
        ("[project.entry-points.'turnwise.environments']\na = 'b:C'\nd = 'e:F'\n", "registers a, d"),
        ("[project.entry-points.'turnwise.environments']\na = 'gone:C'\n", "there is no such module"),
        ("not toml", "cannot read"),
    ],
    ids=["none", "number", "empty", "two", "gone", "no-toml"],
)
def test_a_folder_that_is_no_environment_is_told_in_one_line(tmp_path, monkeypatch, text, said):
    monkeypatch.setattr(sys, "path", list(sys.path))
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(text)
    with pytest.raises(ConfigError, match=said) as error:
        find_environment(str(folder))
    assert "\n" not in str(error.value)
