"""Turnwise as its users get it: the wheel, in an environment of its own."""

import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DATA_FILES = {
    "environments/shipped/code_debug/bugs.jsonl",
    "environments/policy/rendering/embedded_tokenizer/chat_template.jinja",
    "environments/policy/rendering/embedded_tokenizer/tokenizer.json",
    "environments/policy/rendering/embedded_tokenizer/tokenizer_config.json",
    "environments/py.typed",
    "turnwise/viewer/demo/demo.jsonl.gz",
    *(f"turnwise/viewer/page/{path.name}" for path in (ROOT / "turnwise/viewer/page").iterdir()),
    "tools/py.typed",
    "turnwise/py.typed",
}

TYPED = """
from typing import Any

import turnwise
import turnwise.credit
from turnwise import AgentEnv, Sandbox, State, ToolContext, ToolError, Toolset, Trajectory
from turnwise import TurnLevelRewardMixin, terminal, tool


class Shop(State):
    @tool
    def look(self, what: str, ctx: ToolContext) -> list[str]:
        ctx.metrics["looked"] = 1.0
        return [what]


@tool(parallel=True)
async def add(sandbox: Sandbox, a: int, b: int) -> str:
    if a > 9:
        raise ToolError("too large")
    return str(a + b)


class Typed(TurnLevelRewardMixin, AgentEnv):
    name = "typed"
    tools = (terminal, Toolset("sums", (add,)), Shop)

    async def load_items(self) -> list[dict[str, Any]]:
        return [{"id": "one"}]

    def format_prompt(self, item: dict[str, Any]) -> str:
        return str(item["id"])

    async def prepare(self, item: dict[str, Any], sandbox: Sandbox) -> Shop:
        await sandbox.write_file("a.txt", b"")
        return Shop()

    async def score_turn(
        self, item: dict[str, Any], turn: turnwise.Turn, ctx: turnwise.RolloutContext
    ) -> turnwise.Reward | None:
        reveal_type(turn.message)
        reveal_type(await ctx.sandbox.exec("true"))
        return None

    async def compute_outcome(
        self, item: dict[str, Any], trajectory: Trajectory, ctx: turnwise.RolloutContext
    ) -> turnwise.Reward | None:
        return 1.0 if trajectory.turns else None


for group in [turnwise.group_of([[1.0], [0.0]])]:
    reveal_type(turnwise.credit.estimate("turn_return", group))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """An interpreter that has the wheel and its dependencies, and does not know this folder."""
    home = tmp_path_factory.mktemp("installed")
    venv.create(home, with_pip=False, symlinks=True)
    packages = home / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    # Its dependencies, by path: a .pth file inside that folder, such as our own editable one, is not read.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return home / "bin" / "python"


@pytest.fixture(scope="module")
def found(installed, tmp_path_factory):
    """What `mypy --strict` says about the README's environment and about one with every type written."""
    folder = tmp_path_factory.mktemp("checked")
    # Skipped only to be quick: no name that a user sees comes from there.
    (folder / "mypy.ini").write_text("[mypy-atroposlib.*,openai.*,numpy.*]\nfollow_imports = skip\n")
    (folder / "count_files.py").write_text(readme_example())
    (folder / "typed.py").write_text(TYPED)
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", installed, "."]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True).stdout


def readme_example():
    (code,) = re.findall(
        r'^```python title="count_files\.py"\n(.*?)^```',
        (ROOT / "README.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    return code


def test_the_wheel_holds_every_module_and_data_file(wheel):
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    modules = {
        str(path.relative_to(ROOT))
        for own in ("environments", "tools", "turnwise")
        for path in (ROOT / own).rglob("*.py")
    }
    assert held >= modules | DATA_FILES
    assert {name.split("/")[0] for name in held} == {"environments", "tools", "turnwise"}


def test_the_installed_command_runs(installed, tmp_path):
    run = subprocess.run([installed, "-m", "turnwise", "list"], cwd=tmp_path, capture_output=True, text=True)
    assert run.stdout.startswith("code_debug "), run.stderr


@pytest.mark.soak  # half a minute of mypy
def test_strict_mypy_blames_only_what_the_readme_example_leaves_untyped(found):
    errors = re.findall(r"^count_files\.py:\d+: error: .*\[([a-z-]+)\]$", found, re.MULTILINE)
    assert set(errors) == {"no-untyped-def"}, found


@pytest.mark.soak
def test_strict_mypy_finds_nothing_in_a_typed_environment(found):
    assert not re.findall(r"^typed\.py:\d+: error: .*", found, re.MULTILINE), found


def test_mypy_knows_what_the_public_names_are(found):
    assert re.findall(r'Revealed type is "(.*)"', found) == [
        "environments.trajectory.Message",
        "tools.sandbox.base.ExecResult",
        "list[list[float]]",
    ], found
