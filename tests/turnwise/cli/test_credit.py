"""`turnwise credit` lists estimators, shows how another moves a record's credit, and writes it."""

import json
import re
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from click.testing import CliRunner

from environments.credit import ESTIMATORS, credited, credited_batch, describe
from environments.record.recorder import Recorder, read_groups
from environments.testing import group_of
from environments.trajectory import CreditedGroup, Failure
from tests.environments.credit.test_overlapping_threads import NESTED, clocked
from tests.environments.record.any_group import all_withheld
from tests.tables import cases
from tests.turnwise.lab.credit_report.token_games import game
from tools.errors import ConfigError, CreditError, RecordError, UsageError
from turnwise.cli.credit import command
from turnwise.cli.main import main

OWN_ESTIMATOR = """
from environments.credit import register_estimator


@register_estimator("flat")
def flat(group, *, height: float = 1.0):
    '''The same for every turn.'''
    return [[height] * len(t.turns) for t in group.trajectories]
"""


def group(item, rewards, outcomes):
    states = [["start", "later", "last"][: len(row)] for row in rewards]
    return replace(group_of(rewards, outcomes=outcomes, anchors=states), item_id=item, group_id=f"{item}/0")


@pytest.fixture
def record(tmp_path):
    lone = replace(
        group("c", [[1.0]], [1.0]),
        failures=(Failure(sibling=1, stop_reason=None, error="Boom: x", traceback="", turns=0),),
    )
    path = tmp_path / "rollouts.jsonl"
    with Recorder(path) as recorder:
        for scored in (
            group("a", [[0.5, 0.0], [0.0, 1.0]], [1.0, 0.0]),
            group("b", [[1.0], [0.0]], [0.0, 1.0]),
        ):
            recorder.append(credited(scored, "turn_return", policy="scripted"))
        recorder.append(
            CreditedGroup(
                group=lone,
                advantages=((0.0,),),
                policy="scripted",
                estimator="turn_return",
                status="failed",
                reason="1 of 2 rollouts survived",
            )
        )
    return path


def run(*arguments):
    return CliRunner().invoke(command, [str(each) for each in arguments], catch_exceptions=False)


def test_the_new_record_holds_the_same_groups_with_the_new_advantages(record, tmp_path):
    out = tmp_path / "new.jsonl"

    assert run(record, "--estimator", "gigpo", "--set", "gamma=1", "--write", out).exit_code == 0

    old, new = list(read_groups(record)), list(read_groups(out))
    assert [each.group for each in new] == [each.group for each in old]
    assert new[0] == credited(old[0].group, "gigpo", policy="scripted", params={"gamma": 1.0})


def test_overlapping_threads_are_credited_by_the_clocks_of_the_record(tmp_path):
    record, out = tmp_path / "rollouts.jsonl", tmp_path / "new.jsonl"
    threads = clocked(group("a", [[1.0, 2.0, 4.0], [0.0, None, 1.0]], [8.0, 0.0]), NESTED, NESTED)
    with Recorder(record) as recorder:
        recorder.append(credited(threads, "rloo", policy="scripted"))

    run(record, "--estimator", "turn_return", "--set", "gamma=0.5", "--write", out)

    (after,) = read_groups(out)
    assert after == credited(threads, "turn_return", policy="scripted", params={"gamma": 0.5})


def test_a_failed_group_stays_as_it_is_and_one_that_has_no_credit_any_more_says_so(record, tmp_path):
    out = tmp_path / "new.jsonl"
    output = run(record, "--estimator", "grpo", "--write", out).output

    assert list(read_groups(out))[2] == list(read_groups(record))[2]
    assert [each.status for each in read_groups(out)] == ["ok", "no_credit", "failed"]
    assert "1 failed groups stay" in output
    assert "nothing to learn from" not in output


def test_a_stale_group_stays_without_credit(tmp_path):
    record, out = tmp_path / "rollouts.jsonl", tmp_path / "new.jsonl"
    stale = all_withheld(group("a", [[0.5, 0.0], [0.0, 1.0]], [1.0, 0.0]), "stale: 2 newer versions")
    with Recorder(record) as recorder:
        recorder.append(credited(stale, "turn_return", policy="scripted"))
    output = run(record, "--estimator", "rloo", "--write", out).output

    (after,) = read_groups(out)
    assert (after.estimator, after.status, after.reason) == ("rloo", "no_credit", "stale: 2 newer versions")
    assert not any(map(any, after.advantages))
    assert output.startswith("0 groups, ")
    assert "1 stale groups stay without credit" in output


@pytest.fixture(params=["ok", "failed"])
def without_outcomes(request, tmp_path):
    """A record of one group with a missing outcome: credited long ago, or failed because of it."""
    path = tmp_path / "rollouts.jsonl"
    refused = credited(
        group("a", [[0.5, 0.0], [1.0], [0.0]], [None, 1.0, 0.0]), "turn_return", policy="scripted"
    )
    assert refused.status == "failed"
    with Recorder(path) as recorder:
        recorder.append(replace(refused, status=request.param))
    return path, request.param


@pytest.mark.parametrize(("missing", "left"), [("drop", [1, 2]), ("-1", [0, 1, 2])])
def test_what_a_missing_outcome_counts_as_can_be_said_afterwards(without_outcomes, tmp_path, missing, left):
    record, before = without_outcomes
    out = tmp_path / "new.jsonl"
    output = run(record, "--estimator", "turn_return", "--missing-outcome", missing, "--write", out).output
    (after,) = read_groups(out)
    assert after.status == "ok"
    assert [each.sibling for each in after.group.trajectories] == left
    assert len(after.group.failures) == 3 - len(left)
    assert output.startswith("1 groups, " if before == "ok" else "0 groups, ")
    assert ("1 groups that had no credit have some now" in output) == (before == "failed")


def test_a_missing_outcome_stays_refused_unless_something_is_said(without_outcomes, tmp_path):
    record, before = without_outcomes
    if before == "ok":
        with pytest.raises(CreditError, match=r"line 1: no outcome beside siblings with one: siblings 0"):
            run(record, "--estimator", "rloo", "--write", tmp_path / "new.jsonl")
    else:
        output = run(record, "--estimator", "rloo", "--write", tmp_path / "new.jsonl").output
        assert "1 failed groups stay as they are" in output


def test_the_preset_is_recorded_as_the_parameters_it_stands_for(record, tmp_path):
    out = tmp_path / "new.jsonl"
    run(record, "--estimator", "grpo", "--preset", "torchtitan", "--write", out)

    first = next(read_groups(out))
    assert (first.estimator, first.estimator_params["norm_by_std"]) == ("grpo", False)


def test_it_prints_how_credit_moved(record, tmp_path):
    output = run(record, "--estimator", "rloo", "--write", tmp_path / "new.jsonl").output

    assert "2 groups, 6 turns" in output
    assert "rank correlation within groups" in output
    assert "mean turn_return" in output
    assert "mean rloo" in output
    assert "new.jsonl" in output.splitlines()[-1]


def test_the_same_estimator_again_changes_nothing(record, tmp_path):
    out = tmp_path / "new.jsonl"

    output = run(record, "--estimator", "turn_return", "--write", out).output

    assert "0 changed, 0 changed sign; rank correlation within groups 1.000" in output
    assert out.read_bytes() == record.read_bytes()


WRITE = ["--write", "new.jsonl"]


@cases(
    ("arguments", "message"),
    [
        (["--estimator", "gigp", *WRITE], "did you mean 'gigpo'"),
        (["--estimator", "gigpo", "--set", "gamma=2", *WRITE], "gigpo: gamma is 2.0; possible: number 0 … 1"),
        (["--estimator", "gigpo", "--set", "gamma", *WRITE], "NAME=VALUE"),
        (["--estimator", "gigpo", "--preset", "trl", *WRITE], "preset 'trl' does not cover gigpo"),
        (["--load", "gone.py", "--estimator", "flat", *WRITE], r"no file gone\.py"),
        (WRITE, "no estimator given"),
        (["--arm", "gigp"], "did you mean 'gigpo'"),
        (["--estimator", "rloo", "--json"], "--json is of the report on a RECORD"),
        (["--preset", "verl"], "options of an estimator need one"),
        (["--estimator", "rloo", "--env.max_turns", "3"], "are for --rewards"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_is_written(record, monkeypatch, arguments, message):
    monkeypatch.chdir(record.parent)
    with pytest.raises(UsageError, match=message):
        run(record, *arguments)

    assert [path.name for path in record.parent.iterdir()] == ["rollouts.jsonl"]


def test_an_estimator_of_the_users_own_file_is_found(record, tmp_path):
    code, out = tmp_path / "my_estimators.py", tmp_path / "new.jsonl"
    code.write_text(OWN_ESTIMATOR)
    arguments = [record, "--load", code, "--estimator", "flat", "--set", "height=2", "--write", out]
    # A process of its own: what is registered stays.
    subprocess.run([sys.executable, "-m", "turnwise", "credit", *arguments], check=True)
    given = [each.advantages for each in read_groups(out) if each.status == "ok"]
    assert given == [((2.0, 2.0), (2.0, 2.0)), ((2.0,), (2.0,))]


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_without_a_file_of_its_own(record, tmp_path, sent, code):
    estimator, out = tmp_path / "my_estimators.py", tmp_path / "made" / "new.jsonl"
    body = "import time\n    print('going', flush=True)\n    time.sleep(60)\n    return []"
    estimator.write_text(f"{OWN_ESTIMATOR.partition('    return')[0]}    {body}\n")
    arguments = [record, "--load", estimator, "--estimator", "flat", "--write", out]
    command = subprocess.Popen(
        [sys.executable, "-m", "turnwise", "credit", *arguments], stdout=subprocess.PIPE
    )
    assert command.stdout.readline() == b"going\n"
    assert [path.suffix for path in out.parent.iterdir()] == [".part"]
    command.send_signal(sent)
    assert command.wait(60) == code
    assert not out.parent.exists()


def test_an_existing_record_is_never_overwritten(record):
    before = record.read_bytes()

    with pytest.raises(RecordError, match="exists"):
        run(record, "--estimator", "grpo", "--write", record)

    assert record.read_bytes() == before


def test_a_group_that_cannot_be_credited_leaves_no_half_record(record, tmp_path):
    with pytest.raises(CreditError, match=r"rollouts.jsonl, line 2: every score of the group is 1"):
        run(record, "--estimator", "grpo", "--set", "zero_variance=error", "--write", tmp_path / "new.jsonl")

    assert [path.name for path in tmp_path.iterdir()] == ["rollouts.jsonl"]


def test_without_write_it_shows_how_credit_would_move(record, tmp_path):
    shown = run(record, "--estimator", "rloo").output
    written = run(record, "--estimator", "rloo", "--write", tmp_path / "new.jsonl").output
    assert shown == written.removesuffix(f"{tmp_path / 'new.jsonl'}\n")


@pytest.fixture
def game_record(tmp_path):
    path = tmp_path / "game.jsonl"
    with Recorder(path) as recorder:
        for each in game(noise=0.0, groups=40):
            recorder.append(each)
    return path


def test_without_an_estimator_it_reports_which_one_suits_the_record(game_record):
    lines = run(game_record).output.splitlines()
    assert lines[0].split() == ["beside", "γ", "=", "1", "noise", "direction", "groups", "needed"]
    assert [line.split("  ")[0] for line in lines[1:5]] == ["γ = 0.7", "γ = 0.5", "γ = 0", "rloo"]
    assert any(re.match(r"γ = 0\S* needs 1\.\d\d × fewer groups than γ = 1: ", line) for line in lines)


def test_an_arm_is_added_by_name(game_record):
    assert "opo" not in run(game_record).output
    assert "left out: opo: the same as rloo here" in run(game_record, "--arm", "opo").output


def test_all_arms_are_reported_on_request(game_record):
    assert "process_supervision" in run(game_record, "--all").output


def test_the_report_as_json_has_figures_with_intervals(game_record):
    found = json.loads(run(game_record, "--json").stdout)
    assert set(found) == {"gradients", "groups", "rows", "left_out", "sentences"}
    figures = {"noise", "direction", "groups", "groups_until"}
    assert set(found["rows"][0]) == {"estimator", "gamma", "baseline"} | figures
    assert set(found["rows"][0]["groups"]) == {"value", "low", "high"}


def test_a_folder_without_a_model_is_named(game_record, tmp_path):
    pytest.importorskip("torch", reason="without torch its absence is named first")
    with pytest.raises(ConfigError, match="give the folder of a Hugging Face causal model"):
        run(game_record, "--model", tmp_path)


def words(text):
    return "".join(text.split())


def test_each_estimator_is_shown_with_formula_bias_source_and_parameters():
    for name in ESTIMATORS:
        output, spec = words(run("--estimator", name).output), describe(name)
        assert all(words(text) in output for text in (spec.name, spec.formula, spec.bias, spec.source))
        assert all(words(parameter.name) in output for parameter in spec.parameters)


def test_all_estimators_are_shown_with_the_default_first():
    lines = run().output.splitlines()
    assert lines[0] == "turn_return"
    assert set(ESTIMATORS) <= set(lines)


def test_help_alone_explains_the_command():
    assert run("--help").output.startswith("Usage:")


# --- estimators that compare a step ------------------------------------------------------------------------


def by(version, group):
    """The group, sampled by that version of the weights."""
    return replace(
        group,
        trajectories=tuple(
            replace(each, turns=tuple(replace(turn, weight_version=version) for turn in each.turns))
            for each in group.trajectories
        ),
    )


@pytest.fixture(params=[("1", "2", "1"), (None, None, None)], ids=["versions", "none"])
def steps(request, tmp_path):
    """A record of three groups, and the groups of each step."""
    path = tmp_path / "steps.jsonl"
    rewards = ([[1.0], [0.0]], [[1.0, 2.0], [0.0]], [[0.5], [3.0]])
    done = [
        credited(by(version, group(item, each, [0.0, 0.0])), "rloo", policy="p")
        for item, version, each in zip("abc", request.param, rewards, strict=True)
    ]
    with Recorder(path) as recorder:
        for each in done:
            recorder.append(each)
    return path, [[0, 2], [1]] if request.param[0] else [[0, 1, 2]], done


def test_a_step_is_the_groups_of_one_version_of_the_weights(steps, tmp_path):
    (path, parts, done), out = steps, tmp_path / "new.jsonl"

    shown = run(path, "--estimator", "reinforce_pp", "--write", out).output

    wanted = dict(
        pair
        for part in parts
        for pair in zip(part, credited_batch([done[index] for index in part], "reinforce_pp"), strict=True)
    )
    assert list(read_groups(out)) == [wanted[index] for index in range(3)]
    assert f"steps: {len(parts)}, " in shown
    assert ("no weights are named" in shown) == (len(parts) == 1)


def test_a_failed_group_is_no_part_of_a_step(record, tmp_path):
    out = tmp_path / "new.jsonl"
    run(record, "--estimator", "reinforce_pp", "--write", out)

    old, new = list(read_groups(record)), list(read_groups(out))
    assert new == [*credited_batch(old[:2], "reinforce_pp"), old[2]]


def test_gamma_is_short_for_a_parameter(record, tmp_path):
    for number, given in enumerate((["--gamma", "0.5"], ["--set", "gamma=0.5"])):
        run(record, "--estimator", "turn_return", *given, "--write", tmp_path / f"{number}.jsonl")

    assert (tmp_path / "0.jsonl").read_bytes() == (tmp_path / "1.jsonl").read_bytes()
    with pytest.raises(CreditError, match="no parameter of rloo named 'gamma'"):
        run(record, "--estimator", "rloo", "--gamma", "0.5")


def test_a_run_takes_gamma_too(tmp_path):
    out = tmp_path / "run.jsonl"
    settings = ("--env.total_steps", "1", "--env.group_size", "2", "--out", str(out))
    assert main(["process", "sales_chat", "--gamma", "0.5", *settings]) == 0
    assert next(read_groups(out)).estimator_params["gamma"] == 0.5
