"""Files that rollouts read first: the record names them, and takes no group that read others."""

import pytest

from environments.record.origin import LATER
from environments.record.recorder import read_contents
from tests.equipment.commands import turnwise

ENV = """
import tempfile
from pathlib import Path
from turnwise import AgentEnv

HERE = Path(__file__).parent

class MyEnv(AgentEnv):
    name = "my"

    async def load_items(self):
        return [{"id": str(number)} for number in range(3)]

    def format_prompt(self, item):
        return "What?"

    def prepare(self, item, sandbox):
        (HERE / "../corpus/a.txt").read_text()

    def compute_reward(self, item, trajectory, ctx):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            Path(file.name).read_text()
        seen = HERE / "seen.txt"
        count = int(seen.read_text()) if seen.exists() else 0
        seen.write_text(str(count + 1))
        # CHANGES
        return float(trajectory.sibling)
"""
CHANGES = """if count == 8:  # in the second group
            __import__("os").system(f"echo x >> {HERE}/../corpus/a.txt")"""


@pytest.fixture
def folder(tmp_path):
    for name, text in {"env/my_env.py": ENV, "corpus/a.txt": "a", "env/seen.txt": "5"}.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    (tmp_path / "tmp").mkdir()
    return tmp_path


def run(folder, *options):
    arguments = ("process", "my_env.py", "--out", folder / "r", *options)
    return turnwise(*arguments, cwd=folder / "env", TMPDIR=folder / "tmp")


def later(record):
    (facts,) = read_contents(record).origins.values()
    return {name.removeprefix(LATER): value for name, value in facts.items() if name.startswith(LATER)}


TRAINING = ("--env.group_size", "2")


def test_a_resume_that_would_read_another_file_is_refused_by_its_name(folder):
    assert (done := run(folder, *TRAINING, "--env.total_steps", "1")).returncode == 0, done.stderr
    before = later(folder / "r")
    assert before.keys() == {"../corpus/a.txt"}, "temporary files, or what the run writes"

    assert (done := run(folder, *TRAINING, "--env.total_steps", "2")).returncode == 0, done.stderr
    assert later(folder / "r") == before

    (folder / "corpus/a.txt").write_text("b")
    done = run(folder, *TRAINING)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "../corpus/a.txt, which rollouts read, changed" in done.stderr
    assert len((folder / "r").read_bytes().splitlines()) == 2

    (folder / "corpus/a.txt").unlink()
    done = run(folder, *TRAINING)
    assert done.returncode == 2
    assert "../corpus/a.txt, which rollouts read, is gone" in done.stderr

    (folder / "corpus/a.txt").write_text("b")
    assert run(folder, *TRAINING, "--accept").returncode == 0
    assert run(folder, *TRAINING).returncode == 0
    assert later(folder / "r") != before


def test_a_file_that_changes_during_the_run_ends_it(folder):
    (folder / "env/my_env.py").write_text(ENV.replace("# CHANGES", CHANGES))
    done = run(folder, *TRAINING, "--env.max_concurrent_rollouts", "1")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "../corpus/a.txt, which rollouts read, changed" in done.stderr
