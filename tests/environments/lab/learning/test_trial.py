"""Estimators tried on an environment that pays for calls: what is found, and what stands in its folder."""

import asyncio
import json

import pytest

from environments.lab.learning.learn_env import PAGE, VALUES, LearnEnv
from environments.lab.learning.trial_plan import Asked
from environments.record.recorder import read_groups
from environments.record.run_folder import RunFolder
from tests.environments.lab.learning.paid_calls_env import (
    COLOURS,
    BrokenEnv,
    DownEnv,
    FlakyEnv,
    OneChoiceEnv,
    PaidCallsEnv,
)
from tests.environments.write_file import quiet
from tools.errors import ConfigError, CreditError, RunError
from turnwise import Choice, say


def learned(env_cls, folder, *, estimators=("turn_return", "rloo"), group_size=4, **asked):
    config = env_cls.env_config_cls(scripted_skill=0.5, group_size=group_size, max_turns=6, fresh=True)
    learning = LearnEnv(
        estimators=estimators,
        asked=Asked(**{"seconds": 60, "seeds": 2, "steps": 8, **asked}),
        learning_rate=1.0,
        folder=RunFolder(folder),
    )
    return asyncio.run(learning.run(env_cls(config, ()), quiet()))


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    folder = tmp_path_factory.mktemp("learn") / "paid"
    return folder, learned(PaidCallsEnv, folder, estimators=())


def said(values, about):
    return [verdict["text"] for verdict in values["verdicts"] if verdict["about"] == about]


def test_the_estimators_are_those_that_suit_the_environment(trial):
    _, values = trial
    assert [each["name"] for each in values["estimators"]] == ["turn_return", "rloo", "gigpo"]


def test_a_reward_for_each_call_is_named_as_gamed(trial):
    _, values = trial
    (text,) = said(values, "gamed")
    assert text.startswith("calls (with ")
    assert "with no better outcome" in text


def test_the_score_is_seen_to_rise(trial):
    _, values = trial
    assert said(values, "learnable")[0].startswith("yes: the score rises")


def test_the_pass_rate_is_what_evaluate_would_say(trial):
    _, values = trial
    assert "; passed " in said(values, "learnable")[0]
    changes = {each["name"]: each for each in values["estimators"][0]["changes"]}
    assert {key: changes["passed"][key] for key in ("start", "end", "reference")} == {
        key: changes["outcome"][key] for key in ("start", "end", "reference")
    }


def test_each_group_is_in_the_record_with_who_played_and_which_weights(trial):
    folder, _ = trial
    groups = list(read_groups(RunFolder(folder).record))
    assert len(groups) == 3 + 2 * 3 + 3 * 2 * (8 * 2 + 3)
    by = {(group.policy, group.group.trajectories[0].turns[0].weight_version) for group in groups}
    assert {("learned: rloo, seed 1", f"step-{step}") for step in range(9)} <= by


def test_curves_have_a_value_for_each_seed_and_step(trial):
    _, values = trial
    curves = values["estimators"][0]["curves"]
    assert [[len(seed) for seed in curve] for curve in curves.values()] == [[8, 8]] * len(curves)


def test_the_likeliest_choice_of_a_state_comes_first_and_all_add_up(trial):
    _, values = trial
    state = values["estimators"][0]["states"][0]
    shares = [choice["probability"] for choice in state["choices"]]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(1)


def test_the_folder_has_the_values_and_the_page(trial):
    folder, values = trial
    assert json.loads((folder / VALUES).read_text()) == values
    assert (folder / PAGE).stat().st_size > 10_000


def test_equal_trials_find_the_same(tmp_path):
    first, second = (learned(PaidCallsEnv, tmp_path / name, steps=3) for name in "ab")
    assert {**first, "seconds": 0} == {**second, "seconds": 0}


def test_no_step_leaves_the_policy_as_it_was(tmp_path):
    values = learned(PaidCallsEnv, tmp_path / "still", steps=0, seeds=1)
    assert all(each["start"] == each["end"] for arm in values["estimators"] for each in arm["changes"])


def test_an_estimator_that_does_not_exist_is_refused_before_anything_plays(tmp_path):
    with pytest.raises(CreditError, match="no estimator 'nonsense'"):
        learned(PaidCallsEnv, tmp_path / "x", estimators=("nonsense",))


def test_one_choice_at_every_turn_is_nothing_to_learn(tmp_path):
    with pytest.raises(ConfigError, match="one choice at every turn"):
        learned(OneChoiceEnv, tmp_path / "x")


def test_an_environment_whose_first_rollouts_all_break_is_told_why(tmp_path):
    with pytest.raises(
        RunError, match="every rollout of the first item broke: ZeroDivisionError: no colours"
    ):
        learned(BrokenEnv, tmp_path / "x")


def test_rollouts_that_break_refuse_no_estimator_and_are_counted(tmp_path):
    values = learned(FlakyEnv, tmp_path / "x", estimators=("rloo",), steps=4)
    (tried,) = values["estimators"]
    assert tried["refused"] is None
    (text,) = [each for each in said(values, "note") if "rollouts broke" in each]
    assert "ConnectionError: the database is away" in text


def test_a_step_of_which_nothing_is_left_ends_the_trial(tmp_path):
    with pytest.raises(RunError, match=r"every rollout of .* broke: ConnectionError: the database is gone"):
        learned(DownEnv, tmp_path / "x", estimators=("rloo",), steps=4)


def test_a_trial_too_long_for_its_seconds_is_refused_before_it_begins(tmp_path):
    with pytest.raises(ConfigError, match="give --seconds"):
        learned(PaidCallsEnv, tmp_path / "x", seconds=0.01, steps=500)


class PathsEnv(PaidCallsEnv):
    """What can be said begins in as many ways as paths do."""

    def scripted_choices(self, item, messages, tools, skill):
        return [Choice(probability=0.5, message=say(text)) for text in ("/etc", COLOURS[item["word"]])]


def test_choices_that_look_like_paths_are_shown_as_they_are(tmp_path):
    values = learned(PathsEnv, tmp_path, estimators=("rloo",), seeds=1, steps=1)
    messages = {each["message"] for each in values["estimators"][0]["states"][0]["choices"]}
    assert "/etc" in messages


def test_an_estimator_without_siblings_to_compare_is_said_to_teach_nothing(tmp_path):
    values = learned(PaidCallsEnv, tmp_path, estimators=("rloo",), seeds=1, steps=1, group_size=1)
    assert "no group of any step gave credit to learn from with rloo" in said(values, "note")


def test_an_estimator_that_is_named_twice_is_tried_once(tmp_path):
    values = learned(PaidCallsEnv, tmp_path, estimators=("rloo", "rloo"), seeds=1, steps=1)
    assert [each["name"] for each in values["estimators"]] == ["rloo"]


def test_an_unknown_estimator_leaves_a_former_trial_where_it_is(tmp_path):
    (tmp_path / "learn").mkdir()
    (tmp_path / "learn" / "record.jsonl").write_text("mine")
    with pytest.raises(CreditError):
        learned(PaidCallsEnv, tmp_path / "learn", estimators=("nope",))
    assert [each.name for each in tmp_path.iterdir()] == ["learn"]
