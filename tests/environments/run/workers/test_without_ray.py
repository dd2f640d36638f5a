"""What `--workers` needs is imported for it alone, and named where it is missing."""

import subprocess
import sys

from tests.environments.serve.loopback import SERVED, without_torch

LOADED = """
import sys
from turnwise.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print("loaded:", [each for each in sys.modules if each.split(".")[0] == "ray" or ".scale" in each])
"""
COMMAND = ["process", f"{SERVED}:Talk", "--env.group_size", "2", "--env.total_steps", "2"]


def run(command, folder, **variables):
    return subprocess.run(
        [*command, "--out", str(folder / "r.jsonl")], env={**without_torch(), **variables}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=280, check=False,
    )  # fmt: skip


def test_without_the_options_nothing_of_ray_is_imported(tmp_path):
    ended = run([sys.executable, "-c", LOADED, *COMMAND], tmp_path)
    assert ended.stdout.splitlines()[-1] == "loaded: []", ended.stdout
    assert (tmp_path / "r.jsonl").exists()


def test_a_missing_ray_is_named_with_what_brings_it(tmp_path):
    (tmp_path / "ray.py").write_text("raise ModuleNotFoundError(\"No module named 'ray'\", name='ray')\n")
    command = [sys.executable, "-m", "turnwise", *COMMAND, "--workers", "2"]
    ended = run(command, tmp_path, PYTHONPATH=str(tmp_path))
    assert (ended.returncode, len(ended.stdout.splitlines())) == (2, 1), ended.stdout
    assert "--workers needs the package ray" in ended.stdout
    assert "pip install 'turnwise[ray]'" in ended.stdout
    assert not (tmp_path / "r.jsonl").exists()
