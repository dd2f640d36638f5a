"""trackio, in its own SQLite file: it is large, so CI alone has it."""

import json
import os
import sqlite3
import subprocess
import sys

import pytest

if not os.environ.get("TURNWISE_REQUIRE_TRACKIO"):
    pytest.importorskip("trackio", reason="trackio is not installed (`turnwise[trackio]`; CI has it)")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of 17 groups, what it printed, and the steps that trackio has of it."""
    folder = tmp_path_factory.mktemp("run")
    command = [sys.executable, "-m", "turnwise", "process", "terminal_tasks", "--env.use_trackio", "true"]
    command += ["--env.total_steps", "17", "--env.group_size", "2", "--out", str(folder / "r.jsonl")]
    environment = {**os.environ, "TRACKIO_DIR": str(folder / "db"), "TRACKIO_WRITE_TOKEN": "very-secret"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    with sqlite3.connect(folder / "db" / "turnwise.db") as database:
        steps = [
            json.loads(text) for (text,) in database.execute("select metrics from metrics order by step")
        ]
        configs = [
            config if isinstance(config, bytes) else config.encode()
            for (config,) in database.execute("select config from configs")
        ]
    return done.stdout + done.stderr, steps, configs


def test_each_group_is_a_step_and_the_last_window_one_more(run):
    _, steps, _ = run
    assert len(steps) == 18
    assert all("group/score/mean" in step for step in steps[:17])


def test_a_window_has_numbers_by_turn_histograms_and_samples(run):
    _, steps, _ = run
    window = steps[15]
    assert window["window/groups/done"] == 16
    assert window["window/turn/01/rollouts"] == 32
    assert window["histogram/score"]["_type"] == "trackio.histogram"
    assert len(window["samples"]["_value"]) == 16


def test_what_lets_somebody_in_is_on_no_screen_and_in_no_settings(run):
    shown, _, configs = run
    assert "dashboard" not in shown.lower()
    assert "token=" not in shown
    assert not [config for config in configs if b"very-secret" in config]
