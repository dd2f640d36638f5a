"""wandb is off unless asked for, and then it gets every group."""

import os
import subprocess
import sys

from environments.run.tracking import group_numbers
from environments.testing import group_of
from environments.trajectory import CreditedGroup


def rollouts(tmp_path, *options):
    command = [sys.executable, "-m", "turnwise", "process", "terminal_tasks", "--env.max_items", "1"]
    command += ["--env.group_size", "2", "--out", str(tmp_path / "r.jsonl"), *options]
    environment = {**os.environ, "WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)


def test_nothing_is_tracked_unless_asked_for(tmp_path):
    assert rollouts(tmp_path).returncode == 0
    assert not list(tmp_path.glob("wandb*"))


def test_a_tracked_run_leaves_its_groups_with_wandb(tmp_path):
    done = rollouts(tmp_path, "--env.use_wandb", "true")
    assert done.returncode == 0, done.stderr
    (recorded,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    assert b"group/score/mean" in recorded.read_bytes()


def test_without_a_key_tracking_is_refused_in_one_line(tmp_path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    command = [sys.executable, "-m", "turnwise", "process", "terminal_tasks", "--env.use_wandb", "true"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "r.jsonl")],
        env={**environment, "WANDB_DIR": str(tmp_path), "HOME": str(tmp_path), "WANDB_MODE": "online"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith("turnwise: error: --env.use_wandb:")


def test_a_group_without_trajectories_has_no_mean():
    group = group_of([[1.0]])
    empty = CreditedGroup(
        group=type(group)(trajectories=()), advantages=(), policy="p", estimator="e", status="failed"
    )
    numbers = group_numbers(empty)
    assert "group/score/mean" not in numbers
    assert (numbers["group/groups/failed"], numbers["group/rollouts/kept"]) == (1.0, 0.0)
