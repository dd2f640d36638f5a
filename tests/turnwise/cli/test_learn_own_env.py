"""`turnwise learn ENV` on an environment of one's own: what it prints, refuses and leaves."""

import json

import pytest

from turnwise.cli.main import main

ENV = "tests.turnwise.lab.learning.paid_calls_env:PaidCallsEnv"
FEW = ["--seeds", "1", "--steps", "2", "--env.max_turns", "4", "--env.estimator", "rloo"]


@pytest.fixture
def learn(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)

    def run(*args):
        code = main(["learn", ENV, *args])
        said = capfd.readouterr()
        return code, said.out, said.err

    return run


def test_it_prints_what_was_found_and_the_page(learn, tmp_path):
    code, out, err = learn(*FEW)
    lines = out.splitlines()
    assert code == 0
    assert [line.split()[0] for line in lines[:2]] == ["learnable", "gamed"]
    assert (tmp_path / lines[-1]).name == "learning.html"
    assert (tmp_path / lines[-1]).is_file()
    assert "paid_calls, rloo: 1 seeds, 2 steps" in err


def test_json_stands_alone_on_stdout(learn):
    _, out, _ = learn(*FEW, "--json")
    values = json.loads(out)
    assert (values["env"], values["seeds"], values["steps"]) == ("paid_calls", 1, 2)


def test_a_former_trial_is_put_aside(learn, tmp_path):
    learn(*FEW)
    learn(*FEW)
    assert sorted(path.name for path in (tmp_path / "runs/paid_calls").iterdir()) == ["learn", "learn.1"]


def test_what_is_not_for_it_is_refused_in_one_line(learn):
    refused = {
        ("--task", "stop"): "--task is of the game",
        ("--estimator", "rloo"): "--estimator is of the game",
        ("--env.estimator", "nonsense"): "no estimator 'nonsense'",
    }
    ended = {args: learn(*args) for args in refused}
    assert [args for args, (code, _, err) in ended.items() if code != 2 or refused[args] not in err] == []
