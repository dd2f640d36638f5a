"""`turnwise learn`: what it says, what it writes, and that it is no luck of seeds, workers or signals."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from environments.cli.main import main
from environments.record.recorder import read_groups
from environments.run.run_list import listed_runs

ARMS = ("turn_return", "scalar", "control")


def learn(*arguments, out):
    """Exit code, and the JSON that stands last."""
    result = CliRunner().invoke(_command(), ["--out", str(out), "--json", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return json.loads(result.stdout), result


def _command():
    from environments.cli.learn import command

    return command


@pytest.fixture(scope="module")
def stop(tmp_path_factory):
    """Two seeds of `stop` within 60 steps, in this process."""
    out = tmp_path_factory.mktemp("learn") / "stop"
    values, result = learn("--seeds", "2", "--steps", "60", "--workers", "1", out=out)
    return out, values, result


def test_turn_credit_takes_less_than_half_of_the_scalars_steps_where_an_error_ends_the_rollout(stop):
    _, values, _ = stop
    assert values["ratio"] == values["arms"]["turn_return"]["median"] / values["arms"]["scalar"]["median"]
    assert values["ratio"] <= 0.5


def test_the_control_never_arrives(stop):
    _, values, _ = stop
    control = values["arms"]["control"]
    assert control["steps"] == [None, None]
    assert control["median"] is None
    assert max(control["success"]) < 0.1


def test_json_has_the_arms_by_name_and_a_value_for_each_seed(stop):
    _, values, result = stop
    assert list(values) == ["arms", "ratio", "seconds"]
    assert list(values["arms"]) == list(ARMS)
    for arm in values["arms"].values():
        assert list(arm) == ["steps", "median", "success"]
        assert len(arm["steps"]) == len(arm["success"]) == 2
    assert result.stdout.count("\n") == 1


def test_each_run_is_a_record_that_can_be_shown_and_credited_anew(stop, tmp_path, capfd):
    out, values, _ = stop
    for arm in ARMS:
        groups = list(read_groups(out / arm / "seed-1" / "record.jsonl"))
        assert len(groups) == 2 * (values["arms"][arm]["steps"][1] or 60)
        assert {each.policy for each in groups} == {f"learned:{arm}:seed-1"}
    record = str(out / "turn_return" / "seed-0")
    assert main(["show", record]) == 0
    assert main(["recredit", record, "--estimator", "rloo", "--out", str(tmp_path / "rloo.jsonl")]) == 0
    assert "learned:turn_return:seed-0" in capfd.readouterr().out


def test_the_folder_has_the_result_every_step_and_a_plot_with_all_seeds(stop):
    out, values, _ = stop
    assert json.loads((out / "result.json").read_text()) == values
    steps = [json.loads(line) for line in (out / "curve.jsonl").read_text().splitlines()]
    last = {(each["arm"], each["seed"]): each["success"] for each in steps}
    assert [last["scalar", seed] for seed in (0, 1)] == values["arms"]["scalar"]["success"]
    lines = [
        each.get("class") for each in ElementTree.parse(out / "plot.svg").iter() if "points" in each.attrib
    ]
    assert sum("seed" in each for each in lines) == 6
    assert sum("median" in each for each in lines) == 3


def test_two_worker_processes_give_what_one_process_gives(tmp_path):
    one, _ = learn("--seeds", "2", "--steps", "3", "--workers", "1", out=tmp_path / "one")
    two, _ = learn("--seeds", "2", "--steps", "3", "--workers", "2", out=tmp_path / "two")
    assert one["arms"] == two["arms"]
    for arm in ARMS:
        records = [tmp_path / each / arm / "seed-0" / "record.jsonl" for each in ("one", "two")]
        first, second = (
            [(each.advantages, each.group.trajectories[0].rows) for each in read_groups(record)]
            for record in records
        )
        assert first == second


def test_where_all_is_paid_at_the_end_both_credits_take_equal_steps(tmp_path):
    values, result = learn(
        "--task", "delayed", "--seeds", "2", "--steps", "5", "--workers", "1", out=tmp_path / "out"
    )
    turn, scalar = values["arms"]["turn_return"], values["arms"]["scalar"]
    assert turn["steps"] == scalar["steps"]
    assert turn["success"] == pytest.approx(scalar["success"], rel=1e-6)
    assert "both credits are the same" in result.stderr


def test_a_further_estimator_is_a_further_arm(tmp_path):
    values, _ = learn(
        "--estimator", "grpo", "--seeds", "1", "--steps", "1", "--workers", "1", out=tmp_path / "out"
    )
    assert list(values["arms"]) == ["turn_return", "scalar", "grpo", "control"]


def test_one_step_is_enough_and_nobody_arrives(tmp_path):
    values, result = learn("--seeds", "1", "--steps", "1", "--workers", "1", out=tmp_path / "out")
    assert values["ratio"] is None
    assert {tuple(arm["steps"]) for arm in values["arms"].values()} == {(None,)}
    assert "ratio turn_return/scalar: none · - : not within 1 steps" in result.stderr


def test_a_former_run_is_put_aside(tmp_path):
    for _ in range(2):
        learn("--seeds", "1", "--steps", "1", "--workers", "1", out=tmp_path / "out")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["out", "out.1"]
    assert (tmp_path / "out.1" / "result.json").is_file()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--seeds", "0"], "--seeds"),
        (["--steps", "0"], "--steps"),
        (["--task", "never"], "--task"),
        (["--estimator", "nope"], "nope"),
        (["--env.estimator", "grpo"], "--env.estimator"),
        (["--env.no_such", "1"], "no_such"),
        (["--task", "stop", "--env.task", "delayed"], "give one of them"),
    ],
    ids=["seeds", "steps", "task", "estimator", "own", "setting", "two tasks"],
)
def test_what_cannot_be_is_one_line_and_exit_code_2(arguments, said, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["learn", *arguments]) == 2
    told = capfd.readouterr().err
    assert said in told
    assert told.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_each_seed_is_a_run_that_is_listed(stop):
    out, values, _ = stop
    runs = {run.name: run for run in listed_runs(out)}
    assert sorted(runs) == sorted(f"{arm}/seed-{seed}" for arm in ARMS for seed in (0, 1))
    first = runs["turn_return/seed-0"]
    assert (first.state, first.env, first.note) == ("finished", "stations", "")
    assert first.done == first.planned == 2 * values["arms"]["turn_return"]["steps"][0]


def test_a_comparison_of_arms_that_nobody_reads_ends_quietly(stop):
    out, _, _ = stop
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "turnwise", "compare", out / "turn_return/seed-0", out / "scalar/seed-0"]
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.parametrize("workers", ["1", "2"])
def test_an_interrupted_run_leaves_whole_records(tmp_path, workers):
    out = tmp_path / "out"
    command = [sys.executable, "-m", "turnwise", "learn", "--out", str(out), "--workers", workers]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as run:
        first = run.stdout.readline()  # one run has ended
        run.send_signal(signal.SIGINT)
        rest = run.stdout.read()
    assert " seed 0" in first  # with two workers any arm's may be the first
    assert run.returncode == 130
    assert "Traceback" not in rest
    assert "stopped; what was rolled out is in" in rest
    records = [each for each in Path(out).rglob("record.jsonl") if each.stat().st_size]
    assert records
    assert all(list(read_groups(each)) for each in records)
