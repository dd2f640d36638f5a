"""`turnwise learn`: what it says, what it writes, and that it is no luck of seeds or signals."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from environments.record.recorder import read_groups
from environments.run.run_list import listed_runs
from turnwise.cli.main import main

ARMS = ("turn_return", "scalar", "control")


def learn(*arguments, out):
    """Exit code, and the JSON that stands last."""
    result = CliRunner().invoke(_command(), ["--out", str(out), "--json", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return json.loads(result.stdout), result


def _command():
    from turnwise.cli.learn import command

    return command


@pytest.fixture(scope="module")
def stop(tmp_path_factory):
    """Two seeds of `stop` within 60 steps, in this process."""
    out = tmp_path_factory.mktemp("learn") / "stop"
    values, result = learn("--seeds", "2", "--steps", "60", out=out)
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
    assert main(["view", record, "--text"]) == 0
    assert main(["credit", record, "--estimator", "rloo", "--write", str(tmp_path / "rloo.jsonl")]) == 0
    assert "turn_return" in capfd.readouterr().out


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


def test_where_all_is_paid_at_the_end_both_credits_take_equal_steps(tmp_path):
    values, result = learn("--task", "delayed", "--seeds", "2", "--steps", "5", out=tmp_path / "out")
    turn, scalar = values["arms"]["turn_return"], values["arms"]["scalar"]
    assert turn["steps"] == scalar["steps"]
    assert turn["success"] == pytest.approx(scalar["success"], rel=1e-6)
    assert "both credits are the same" in result.stderr


def test_a_further_estimator_is_a_further_arm(tmp_path):
    values, _ = learn("--estimator", "grpo", "--seeds", "1", "--steps", "1", out=tmp_path / "out")
    assert list(values["arms"]) == ["turn_return", "scalar", "grpo", "control"]


def test_an_estimator_with_parameters_is_an_arm(tmp_path):
    arm, out = "turn_return:gamma=0.5,baseline=none", tmp_path / "out"
    values, _ = learn("--estimator", arm, "--seeds", "1", "--steps", "1", out=out)

    first = next(iter(read_groups(out / arm / "seed-0" / "record.jsonl")))
    assert list(values["arms"]) == ["turn_return", "scalar", arm, "control"]
    assert (first.estimator_params["gamma"], first.estimator_params["baseline"]) == (0.5, "none")


def test_one_step_is_enough_and_the_same_again_beside_the_former_folder(tmp_path):
    (first, result), (second, _) = (learn("--seeds", "1", "--steps", "1", out=tmp_path / "out") for _ in "ab")
    assert first["arms"] == second["arms"]
    assert first["ratio"] is None
    assert {tuple(arm["steps"]) for arm in first["arms"].values()} == {(None,)}
    assert "ratio turn_return/scalar: none · - : not within 1 steps" in result.stderr
    assert sorted(each.name for each in tmp_path.iterdir()) == ["out", "out.1"]
    assert (tmp_path / "out.1" / "result.json").is_file()


REFUSED = [
    (["--seeds", "0"], "--seeds"),
    (["--task", "never"], "--task"),
    (["--estimator", "nope"], "nope"),
    (["--estimator", "turn_return:gamma"], "gamma"),
    (["--estimator", "turn_return:gamma=2"], "possible: number 0 … 1"),
    (["--estimator", "turn_return:gama=0.5"], "did you mean 'gamma'?"),
    (["--estimator", "reinforce_pp"], "compares all groups of a training step"),
    (["--env.estimator", "grpo"], "--env.estimator"),
    (["--env.no_such", "1"], "no_such"),
    (["--task", "stop", "--env.task", "delayed"], "give one of them"),
    (["--seconds", "5"], "--seconds is of an ENV of your own"),
]


def test_what_cannot_be_is_one_line_and_exit_code_2(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ended = [(main(["learn", *arguments]), capfd.readouterr().err, part) for arguments, part in REFUSED]
    wrong = [each for each in ended if each[0] != 2 or each[2] not in each[1] or each[1].count("\n") != 1]
    assert wrong == []
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


def test_an_interrupted_run_leaves_whole_records(tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, "-m", "turnwise", "learn", "--out", str(out)]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as run:
        first = run.stdout.readline()  # one run has ended
        run.send_signal(signal.SIGINT)
        rest = run.stdout.read()
    assert " seed 0" in first
    assert run.returncode == 130
    assert "Traceback" not in rest
    assert "stopped; what was rolled out is in" in rest
    records = [each for each in Path(out).rglob("record.jsonl") if each.stat().st_size]
    assert records
    assert all(list(read_groups(each)) for each in records)
