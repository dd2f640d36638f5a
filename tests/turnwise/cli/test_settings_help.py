"""What `--help` says of settings: in groups, those that matter first, and one of them in full."""

import re
from typing import Literal

import pytest
from pydantic import Field

from environments.config import AgentEnvConfig, JudgeConfig, ServerConfig
from tests.tables import cases
from tools.errors import TurnwiseError
from turnwise.cli.main import main
from turnwise.cli.settings import FIRST, setting_help, settings_help


class MyConfig(AgentEnvConfig):
    colour: Literal["red", "blue"] = Field(default="red", description="Colour. Of the ball.")


SERVERS = (ServerConfig(), JudgeConfig())


def shown(config=None, *, every=True):
    return settings_help(config or MyConfig(), "mine", SERVERS, every=every)


def test_every_setting_is_shown_once():
    flags = re.findall(r"^  (--\S+)", shown(), re.MULTILINE)
    assert sorted(flags) == sorted(
        [f"--env.{name}" for name in MyConfig.model_fields]
        + [f"--openai.{name}" for name in ServerConfig.model_fields]
        + [f"--judge.{name}" for name in JudgeConfig.model_fields]
    )


def test_ten_settings_come_first_and_then_those_of_the_environment_alone():
    flags = re.findall(r"^  --\w+\.(\S+)", shown(), re.MULTILINE)
    assert flags[:10] == [name.partition(".")[2] for name in FIRST]
    assert flags[10] == "colour"


def test_without_all_only_those_are_shown():
    flags = re.findall(r"^  --\w+\.(\S+)", shown(every=False), re.MULTILINE)
    assert flags == [name.partition(".")[2] for name in FIRST] + ["colour"]


def test_a_line_has_the_first_sentence_the_default_in_use_and_the_bounds():
    text = shown(MyConfig(group_size=3))
    assert re.search(r"--env\.group_size +Rollouts per item\. \[default: 3; ≥ 1; ≤ 1024\]\n", text)
    assert re.search(r"--env\.colour +Colour\. \[default: red; red \| blue\]\n", text)


def test_no_line_is_wider_than_a_terminal_of_80_columns():
    assert max(map(len, shown().splitlines())) <= 80


def explained(name, section=None, estimator="turn_return"):
    return setting_help(section or MyConfig(), name, estimator=estimator)


def test_each_setting_can_be_explained_in_full():
    text = explained("colour")
    assert text.startswith("--env.colour\n  Colour. Of the ball.\n")
    assert re.search(r"kind +red \| blue\n", text)
    assert re.search(r"default +red", text)
    assert re.search(r"bounds +≥ 1, ≤ 1024", explained("group_size"))
    names = AgentEnvConfig.model_fields
    assert [name for name in names if not explained(name).startswith("--env.")] == []


def test_parameters_are_those_of_the_estimator_in_use_and_one_is_explained_alone():
    assert "\n  gamma " in explained("estimator_params")
    assert "\n  step_weight " in explained("estimator_params", estimator="gigpo")
    text = explained("estimator_params.gamma")
    assert "number 0 … 1" in text
    assert "outcome_weight" not in text


@cases(
    ("name", "said"),
    [("max_turn", "did you mean max_turns?"), ("estimator_params.gama", "did you mean 'gamma'?")],
    ids=["setting", "parameter"],
)
def test_for_a_name_that_nothing_has_the_nearest_is_named(name, said):
    with pytest.raises(TurnwiseError, match=re.escape(said)):
        explained(name)


@cases(
    ("args", "said"),
    [
        (["process", "--env.help", "max_turns"], "Model calls per rollout."),
        (["process", "terminal_tasks", "--env.help", "estimator_params"], "norm_by_std"),
        (["evaluate", "code_debug", "--env.help=seed"], "--env.seed"),
        (["serve", "--judge.help", "temperature"], "--judge.temperature"),
        (["process", "--env.help", "openai.base_url"], "--openai.base_url"),
        (["process", "judged_writing", "--env.help", "drafts"], "Drafts that are written"),
    ],
    ids=["alone", "of-an-environment", "equals", "judge", "another-section", "own"],
)
def test_the_command_line_explains_settings_and_runs_nothing(args, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(args) == 0
    assert said in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


@cases("args", [["--env.help"], ["--env.help", "nothing_like_it"]])
def test_what_cannot_be_explained_is_one_line_and_2(args, capsys):
    assert main(["process", *args]) == 2
    assert capsys.readouterr().err.count("\n") == 1
