"""A user's own `environments` or `tools` hides ours: one sentence says so, wherever it happens."""

import sys
import textwrap

import pytest

from tests.equipment import commands

pytestmark = pytest.mark.usefixtures("real_starts")
ENV = """
from turnwise import AgentEnv, Choice, say

class Mine(AgentEnv):
    name = "mine"

    async def load_items(self):
        return [{"id": "one"}]

    def format_prompt(self, item):
        return "Say one."

    async def compute_reward(self, item, trajectory, ctx):
        return 1.0

    def scripted_choices(self, item, messages, tools, skill):
        return [Choice(probability=1.0, message=say("one"))]

if __name__ == "__main__":
    Mine.cli()
"""


@pytest.fixture
def project(tmp_path):
    """A user's project whose environment is in `my_env.py`."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "my_env.py").write_text(ENV)
    return folder


def package(folder, name):
    own = folder / name
    own.mkdir(parents=True)
    (own / "__init__.py").touch()
    return own


def python(*args, cwd, path=""):
    return commands.python(*args, cwd=cwd, PYTHONPATH=path)


def refused_in_one_line(run, foreign):
    (line,) = run.stderr.splitlines()
    return run.returncode == 2 and line.startswith(
        f"turnwise: error: {foreign} hides Turnwise's own package {foreign.stem!r}: rename it"
    )


@pytest.mark.parametrize(
    "args", [("-m", "turnwise", "list"), ("my_env.py", "process")], ids=["command", "script"]
)
@pytest.mark.parametrize("name", ["environments", "tools.py"])
def test_a_package_or_module_of_our_name_beside_the_user_is_refused_in_one_line(project, args, name):
    foreign = project / name
    if name.endswith(".py"):
        foreign.touch()
    else:
        package(project, name)
    assert refused_in_one_line(python(*args, cwd=project), foreign)


def test_the_command_refuses_a_package_of_our_name_anywhere_on_the_path(project, tmp_path):
    foreign = package(tmp_path / "theirs", "tools")
    run = python("-m", "turnwise", "list", cwd=project, path=foreign.parent)
    assert refused_in_one_line(run, foreign)
    # A program that was started elsewhere has a traceback, as it cannot rename the folder.
    run = python("my_env.py", "process", cwd=project, path=foreign.parent)
    assert f"ImportError: {foreign} hides Turnwise's own package" in run.stderr.splitlines()[-1]


def test_a_module_in_a_package_of_our_name_ends_with_one_line(project):
    foreign = package(project, "tools")
    (foreign / "my_env.py").write_text(ENV)
    assert refused_in_one_line(python("-m", "tools.my_env", "process", cwd=project), foreign)


def test_a_notebook_gets_an_import_error_and_stays_alive(project):
    foreign = package(project, "environments")
    cell = """
        try:
            from turnwise import AgentEnv
        except ImportError as error:
            print(error)
        print("alive")
    """
    run = python("-c", textwrap.dedent(cell), cwd=project)
    sentence, alive = run.stdout.splitlines()
    assert sentence.startswith(f"{foreign} hides Turnwise's own package 'environments': rename it")
    assert alive == "alive"


def test_a_package_of_our_name_that_is_already_imported_is_refused(project):
    foreign = package(project, "environments")
    code = "import environments, sys; sys.path.remove(''); import turnwise; turnwise.AgentEnv"
    run = python("-c", code, cwd=project)
    assert f"ImportError: {foreign} hides Turnwise's own package" in run.stderr.splitlines()[-1]


def test_folders_of_our_names_that_are_no_packages_hide_nothing(project):
    for name in ("environments", "tools"):
        package(project, name)
        (project / name / "__init__.py").rename(project / name / "other.py")
    run = python("my_env.py", "process", "--env.group_size", "2", "--out", "out.jsonl", cwd=project)
    assert run.returncode == 0, run.stderr


def test_a_script_that_imports_our_modules_tells_of_a_foreign_tools_in_one_line(project):
    foreign = package(project, "tools")
    (project / "old.py").write_text("from environments.base_env import AgentEnv\n")
    assert refused_in_one_line(python("old.py", cwd=project), foreign)


def test_a_users_file_beside_their_own_tools_still_finds_ours(project, tmp_path):
    package(project, "tools")
    run = python("-m", "turnwise", "process", project / "my_env.py:Mine", "--out", "o.jsonl", cwd=tmp_path)
    assert run.returncode == 0, run.stderr


def test_a_package_that_is_missing_is_told():
    code = (
        "import sys; from turnwise import own_packages as own; from importlib import util; "
        "util.find_spec = lambda name: None; own.find_own_packages()"
    )
    run = python("-c", code, cwd=sys.prefix)
    assert "Turnwise's own package 'environments' is missing from" in run.stderr.splitlines()[-1]
