"""What lies below folders that every sandbox may read, and is nobody's business inside."""

import logging
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig
from tools.terminal import terminal


class ToyEnv(AgentEnv):
    name = "toy"
    tools = (terminal,)

    def format_prompt(self, item):
        return str(item)

    async def compute_reward(self, item, trajectory, ctx):
        return 0.0


ROOT = Path(__file__).parents[2]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can install below /usr")
_LOOK = """
import asyncio, sys, tools
from tools.sandbox.base import SandboxLimits
from tools.sandbox.local.backend import open_local
site, tier = sys.argv[1:]
assert tools.__file__.startswith(site), tools.__file__
script = f"cd {site}; cat */*.py */*/* *.dist-info/* /usr/local/etc/*; echo; cat other/data"
async def main():
    async with open_local(SandboxLimits(network="full"), tier=tier) as sandbox:
        print((await sandbox.exec(script)).text())
asyncio.run(main())
"""


@pytest.fixture
def below_usr() -> Iterator[Path]:
    folder = Path("/usr/local/share", f"turnwise-test-{secrets.token_hex(8)}")
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


@needs_root
@pytest.mark.parametrize("tier", ["B", "C"])
def test_an_installation_of_this_package_is_hidden_and_what_lies_beside_it_is_not(below_usr: Path, tier: str):
    site = below_usr / "site-packages"
    for package in ("tools", "environments", "turnwise"):
        shutil.copytree(ROOT / package, site / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("turnwise-9.dist-info", "other"):
        (site / name).mkdir()
        (site / name / "data").write_text(f"content of {name}")
    env = {**os.environ, "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}
    seen = subprocess.run(
        [sys.executable, "-c", _LOOK, str(site), tier],
        env=env, capture_output=True, text=True, check=True, cwd="/",
    )  # fmt: skip
    assert seen.stdout.strip() == "content of other"


@needs_root
async def test_an_environment_whose_dataset_agents_can_read_says_so(below_usr: Path, caplog):
    data = below_usr / "items.jsonl"
    data.write_text('{"task_id": "a"}\n')
    config = AgentEnvConfig(dataset_path=str(data))
    with caplog.at_level(logging.WARNING):
        await ToyEnv(config).preflight()
    told = [record.getMessage() for record in caplog.records]
    assert [line for line in told if line.startswith("the environment's dataset lies below /usr, ")] == told
    assert str(data) in told[0]
