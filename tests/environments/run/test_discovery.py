import sys

import pytest

from environments.base_env import AgentEnv
from environments.run.discovery import find_environment
from tests.equipment.modules import forget_modules_of
from tests.tables import cases
from tools.errors import ConfigError

ENV = """
from environments.base_env import AgentEnv

class {name}(AgentEnv):
    name = "{name}"
"""


@pytest.fixture(autouse=True)
def clean_imports(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    forget_modules_of(tmp_path)


@pytest.fixture
def env_file(tmp_path):
    def write(text, name="their_env.py"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_a_class_is_picked_from_a_file_by_name_or_because_it_is_alone(env_file, tmp_path):
    alone = find_environment(str(env_file(ENV.format(name="One"))))
    assert (alone.name, issubclass(alone, AgentEnv), sys.path[-1]) == ("One", True, str(tmp_path))
    path = env_file(ENV.format(name="One") + ENV.format(name="Two"), "two.py")
    assert find_environment(f"{path}:Two").name == "Two"


def test_an_environment_that_a_file_imports_is_not_its_own(env_file):
    env_file(ENV.format(name="Base"), "base_of_theirs.py")
    path = env_file("from base_of_theirs import Base\nclass Child(Base):\n    name = 'child'\n")
    assert find_environment(str(path)).name == "child"


def test_a_module_is_found_from_the_current_folder(env_file, tmp_path, monkeypatch):
    (tmp_path / "theirs").mkdir()
    env_file(ENV.format(name="One"), "theirs/envs.py")
    monkeypatch.chdir(tmp_path)
    assert find_environment("theirs.envs:One").name == "One"


def test_a_command_line_that_runs_at_import_is_told_where_to_stand(env_file):
    with pytest.raises(ConfigError, match=r'One\.cli\(\) under `if __name__ == "__main__":`'):
        find_environment(str(env_file(ENV.format(name="One") + "\nOne.cli()\n")))


def test_a_file_named_like_a_known_module_is_loaded_all_the_same(env_file):
    assert find_environment(str(env_file(ENV.format(name="One"), "json.py"))).name == "One"


@cases(
    ("given", "said"),
    [
        ("code_debgu", "no environment 'code_debgu'; did you mean 'code_debug'?; choose one of code_debug"),
        ("nothing.here", "no environment 'nothing.here'; choose one of code_debug, "),
        ("../nothing", "no environment '../nothing'; choose one of code_debug, "),
        ("nothing:Class", "no environment 'nothing'"),
        ("gone.py", "no file gone.py"),
        ("gone.py:Class", "no file gone.py"),
        ("", "no environment ''"),
        ("code_debug:Class", "'code_debug' is an environment and takes no class"),
    ],
)
def test_an_unknown_environment_is_told_with_what_exists(given, said):
    with pytest.raises(ConfigError) as error:
        find_environment(given)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("text", "picked", "said"),
    [
        (ENV.format(name="One"), ":Two", "no environment 'Two' in .*; it has One"),
        ("x = 1\n", "", "has no subclass of AgentEnv"),
        ("x = 1\n", ":x", "no environment 'x' in .*; it has no subclass of AgentEnv"),
        (ENV.format(name="One") + ENV.format(name="Two"), "", "several environments; name one of One, Two"),
        ("def broken(:\n", "", r"their_env\.py, line 1: invalid syntax"),
        ("\nimport no_such_thing\n", "", r"their_env\.py, line 2: no module named 'no_such_thing'"),
        ("\n\nboom\n", "", r"their_env\.py, line 3: NameError: name 'boom' is not defined"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_in_one_line(env_file, text, picked, said):
    with pytest.raises(ConfigError, match=said) as error:
        find_environment(f"{env_file(text)}{picked}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("package", ["tools", "environments"])
def test_a_users_own_package_of_our_name_is_told_when_their_file_imports_it(env_file, tmp_path, package):
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").touch()
    (tmp_path / package / "helper.py").touch()
    path = env_file(f"import {package}.helper\n")
    with pytest.raises(ConfigError, match=f"{package!r} is the name of Turnwise's own package: rename"):
        find_environment(str(path))
