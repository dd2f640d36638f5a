"""Packages of local sandboxes: installed once for all, read-only inside, and before what the agent left."""

import hashlib
import subprocess
import sys

import pytest

from environments.run.experiment import origin_of
from tools.errors import ConfigError
from tools.sandbox import open_sandbox, package_versions
from tools.sandbox.local import packages
from turnwise import AgentEnv, AgentEnvConfig, SandboxSpec

SMALL = ("iniconfig==2.1.0",)
AGENTS = b"print('of the agent')\nraise SystemExit(0)\n"


@pytest.fixture(autouse=True)
def _forgetting():
    yield
    packages.folder_of.cache_clear()
    packages.versions_of.cache_clear()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of packages."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "turnwise/packages"


async def test_commands_and_the_shell_import_packages_and_find_their_programs():
    async with open_sandbox("local", packages=("pytest==8.4.2",)) as sandbox:
        result = await sandbox.exec(["python3", "-m", "pytest", "--version"])
        assert result.text() == "pytest 8.4.2\n"
        assert (await sandbox.shell("pytest --version")).text() == "pytest 8.4.2\n"


async def test_the_agent_cannot_write_to_packages():
    async with open_sandbox("local", packages=SMALL) as sandbox:
        result = await sandbox.exec("touch $PYTHONPATH/x || echo x >$PYTHONPATH/iniconfig/__init__.py")
    assert b"Read-only" in result.stderr
    assert result.exit_code != 0


class Judged(AgentEnv):
    """Its agent leaves modules named like the packages."""

    name = "tested"
    packages = ("pytest==8.4.2",)

    def load_items(self):
        return ["a task"]

    def format_prompt(self, item):
        return item

    async def prepare(self, item, sandbox):
        for name in ("pytest.py", "pluggy.py", "iniconfig.py", "sitecustomize.py"):
            await sandbox.write_file(name, AGENTS)
        await sandbox.write_file("solution.py", b"def double(x): return x + x\n")

    async def compute_reward(self, item, trajectory, ctx):
        test = "import iniconfig, solution\ndef test_it():\n  assert solution.double(2) == 4, iniconfig\n"
        command = ["python3", "-m", "pytest", "-q", "test_it.py"]
        result = await ctx.verify(command=command, artefacts=["."], files={"test_it.py": test})
        return float(result.exit_code == 0 and "1 passed" in result.text())


async def test_a_verification_imports_packages_and_not_the_agents_modules_of_their_names():
    async with Judged(AgentEnvConfig(group_size=1, min_group_size=1)) as env:
        group = await env.run_group(env.tasks()[0])
    assert [each.score for each in group.group.trajectories] == [1.0]


async def test_the_fingerprint_names_each_package():
    async with Judged() as env:
        facts = origin_of(env).facts()
    assert facts["package pytest"].startswith("8.4.2 ")
    assert {"package pluggy", "package iniconfig"} <= facts.keys()


async def test_packages_of_an_item_are_resolved_before_any_rollout_and_are_in_the_fingerprint():
    class PerItem(Judged):
        packages = ()

        def sandbox_for(self, item):
            return SandboxSpec(packages=SMALL)

    async with PerItem() as env:
        assert "package iniconfig" in origin_of(env).facts()


def test_a_lock_file_with_hashes_is_taken(cache, tmp_path):
    wheel = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--no-deps", "-q", "-d", str(tmp_path), *SMALL],
        check=True,
    )
    assert wheel.returncode == 0
    digest = hashlib.sha256(next(tmp_path.glob("*.whl")).read_bytes()).hexdigest()
    lock = tmp_path / "locked.txt"
    lock.write_text(f"{SMALL[0]} --hash=sha256:{digest}\n")
    assert package_versions("local", (str(lock),)) == package_versions("local", SMALL)


def test_a_lock_file_without_the_right_hashes_is_refused(cache, tmp_path):
    lock = tmp_path / "locked.txt"
    lock.write_text(f"{SMALL[0]} --hash=sha256:{'0' * 64}\n")
    with pytest.raises(ConfigError, match=r"DO NOT MATCH THE HASHES"):
        packages.folder_of((str(lock),))
    assert not [path for path in cache.iterdir() if path.suffix != ".lock"]


def test_two_processes_that_resolve_at_once_make_one_folder(cache):
    code = f"from tools.sandbox.local.packages import folder_of; print(folder_of({SMALL!r}))"
    both = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(2)]
    assert len({each.communicate()[0] for each in both}) == 1
    assert [each.returncode for each in both] == [0, 0]
    assert len([path for path in cache.iterdir() if path.suffix != ".lock"]) == 1


def test_what_a_killed_process_left_is_not_taken_for_the_packages(cache):
    half = f"{packages.folder_of(SMALL)}.new"
    (cache / half).mkdir()
    (cache / half / "iniconfig").mkdir()
    finished = cache / packages.folder_of(SMALL)
    finished.rename(finished.with_name("elsewhere"))
    packages.folder_of.cache_clear()
    assert packages.folder_of(SMALL) == str(finished)
    assert (finished / "iniconfig/__init__.py").is_file()


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (("iniconfig==0.0.99",), "No matching distribution found"),
        (("docopt==0.6.2",), "only wheels are taken"),
        (("../mine",), "give names with versions"),
        (("-e .",), "give names with versions"),
        (("nothing-there.txt",), "lock file of packages cannot be read"),
    ],
)
def test_what_cannot_be_had_is_one_line(cache, asked, reason):
    with pytest.raises(ConfigError, match=reason) as error:
        packages.folder_of(asked)
    assert "\n" not in str(error.value)


def test_a_cache_that_cannot_be_written_is_refused_with_the_way_out(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="set XDG_CACHE_HOME"):
        packages.folder_of(SMALL)


def test_docker_is_told_to_use_its_image():
    with pytest.raises(ConfigError, match="install them in the image"):
        open_sandbox("docker", packages=SMALL)
