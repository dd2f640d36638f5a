"""Code that blocks the event loop is named, and ends the run; nobody else is taken for it."""

import signal
import subprocess
import time

import pytest

from environments.record.recorder import read_groups
from tests.adversarial.commands import process, run
from tests.environments.run.leftovers import groups_and_folders
from tests.environments.serve.loopback import TURNWISE, running
from tools.sandbox.host.ownership import identity


@pytest.mark.parametrize(
    ("env", "place"),
    [pytest.param("Sleeping", "in misbehave", marks=pytest.mark.soak), ("Matching", "in judge")],
)
def test_the_hook_is_named_within_seconds_and_the_run_ends_with_its_record_whole(tmp_path, env, place):
    ended = run(process(env, tmp_path, "--env.hook_block_s", "7", "--env.max_concurrent_rollouts", "2"))
    assert ended.returncode == 1
    named, stopped = [line for line in ended.stdout.splitlines() if "event loop" in line]
    assert "plain_env.py:" in named
    assert "in compute_reward" in named
    assert place in named
    assert stopped.startswith("stopped: plain_env.py:")
    assert (tmp_path / "record.jsonl").read_bytes().endswith(b"\n")
    # So that the next start goes on with others, and gives it up in the end.
    [failed] = [group for group in read_groups(tmp_path / "record.jsonl") if group.status == "failed"]
    assert (failed.group.item_id, failed.group.failures[0].error_class) == ("item3", "BlockedLoop")
    again = run(process("Plain", tmp_path))
    assert "holds groups of another run" in again.stdout  # what is there was taken up, not torn


def test_no_sandbox_outlives_a_run_that_was_ended(tmp_path):
    command = process("Sleeping", tmp_path, "--env.hook_block_s", "1")
    with running(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as ended:
        owner = identity(ended.pid)
        assert ended.wait(60) == 1
    subprocess.run([TURNWISE, "doctor", "sandbox", "local", "--reap"], check=True, stdout=subprocess.DEVNULL)
    assert groups_and_folders({owner}) == []


def test_what_takes_long_before_the_first_rollout_may_block(tmp_path):
    ended = run(process("SlowStart", tmp_path, "--env.hook_block_s", "1"))
    assert ended.returncode == 0, ended.stdout
    assert "the event loop" not in ended.stdout


def test_a_process_that_was_stopped_has_blocked_nothing(tmp_path):
    command = process("Waiting", tmp_path, "--env.hook_block_s", "2")
    with running(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as stopped:
        assert any("waiting" in line for line in stopped.stdout)
        stopped.send_signal(signal.SIGSTOP)
        time.sleep(6)
        stopped.send_signal(signal.SIGCONT)
        time.sleep(2)
        assert stopped.poll() is None
        stopped.send_signal(signal.SIGTERM)
        assert stopped.wait(30) == 128 + signal.SIGTERM
        assert "the event loop" not in stopped.stdout.read()
