"""Runs with branches, against a model server and in real sandboxes, by the command line."""

import json
import subprocess
from pathlib import Path

import pytest

from environments.credit import estimate
from environments.record.recorder import read_groups
from tests.environments.rollout import count_up
from tests.environments.serve.loopback import (
    TURNWISE,
    free_port,
    playing,
    running,
    wait_for_port,
    wait_until,
    without_torch,
)
from tests.equipment.kills import lines_in

pytestmark = pytest.mark.soak
ENV = f"{Path(count_up.__file__)}:CountUp"
GROUPS = 18
"""So many that a kill after the first, when a busy machine comes to it, finds the run at work."""


@pytest.fixture(scope="module")
def model_server():
    port = free_port()
    command = [
        TURNWISE,
        "mock-model",
        ENV,
        "--port",
        str(port),
        "--env.scripted_skill",
        "0.6",
        "--kind",
        "vllm",
    ]
    with running(command, stdout=subprocess.DEVNULL) as process:
        wait_for_port(process, port)
        yield playing(port)


def turnwise(*arguments):
    return subprocess.run(
        [TURNWISE, *arguments], env=without_torch(), capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def record(model_server, tmp_path_factory):
    """A record of a run that was killed after its first group, and resumed."""
    path = tmp_path_factory.mktemp("branched") / "record.jsonl"
    command = ["process", ENV, "--env.group_size", "4", "--env.branches", "2", "--out", str(path)]
    command += [*model_server, "--env.total_steps", str(GROUPS), "--env.max_concurrent_rollouts", "4"]
    with running([TURNWISE, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as first:
        wait_until(lambda: lines_in(path) > 0)
        first.kill()
    assert lines_in(path) < GROUPS, "the kill missed the work"
    again = turnwise(*command)
    assert again.returncode == 0, again.stderr
    return path


def test_a_killed_run_resumes_and_its_trunks_have_their_branches(record):
    groups = [each.group for each in read_groups(record)]

    assert sorted((each.item_id, each.epoch) for each in groups) == sorted(
        (item, epoch) for item in ("a", "b", "c") for epoch in range(GROUPS // 3)
    )
    for group in groups:
        assert group.failures == ()
        for trunk, *branches in ([group.trajectories[at] for at in family] for family in group.families):
            wrong = [turn for turn, reward in enumerate(trunk.rewards.turns[:-1]) if reward < 1.0]
            assert len(branches) == bool(wrong)
            assert all(each.branch_turn == wrong[0] + 1 for each in branches)


def test_another_credit_of_the_record_is_what_the_run_would_have_given(record, tmp_path):
    written = tmp_path / "rloo.jsonl"

    done = turnwise("credit", str(record), "--estimator", "rloo", "--write", str(written))

    assert done.returncode == 0, done.stderr
    for each in read_groups(written):
        assert [list(row) for row in each.advantages] == estimate("rloo", each.group)


@pytest.mark.parametrize(
    "options", [("--estimator", "gigpo"), ("--rewards", "--env", ENV, "--env.estimator", "gigpo")]
)
def test_an_estimator_that_is_biased_on_branches_is_refused_by_name(record, tmp_path, options):
    done = turnwise("credit", str(record), *options, "--write", str(tmp_path / "gigpo.jsonl"))

    assert "gigpo does not credit branches of a rollout; possible: turn_return, baseline" in (
        done.stdout + done.stderr
    )


def test_rescored_branches_leave_their_prefix_to_the_trunk(record, tmp_path):
    path = tmp_path / "rescored.jsonl"

    done = turnwise("credit", str(record), "--rewards", "--env", ENV, "--write", str(path))

    assert done.returncode == 0, done.stderr
    before, after = (
        {(each.group.item_id, each.group.epoch): each.advantages for each in read_groups(at)}
        for at in (record, path)
    )
    assert before == after


def test_the_report_reads_a_record_with_branches(record):
    done = turnwise("credit", str(record), "--json")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)


def test_the_text_view_says_which_sibling_branches_where(record):
    item = next(each.group for each in read_groups(record) if len(each.group.trajectories) > 2)
    branch = item.trajectories[-1]

    shown = turnwise("view", str(record), "--text", "--item", item.item_id).stdout

    assert f"branch of {branch.trunk} at turn {branch.branch_turn + 1}" in shown
