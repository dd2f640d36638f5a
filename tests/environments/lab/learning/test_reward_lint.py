"""Estimators tried on an environment that pays for calls: what is found, and what stands in its folder."""

import asyncio
import json

import pytest

from environments.lab.learning.compare_arms import RESULT
from environments.lab.learning.reward_lint import PAGE, Asked, Plan, lint_rewards, plan_within
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
from tools.errors import ConfigError, CreditError, RunError
from turnwise import Choice, say


def learned(env_cls, folder, *, group_size=4, rate=1.0, estimator=None, **asked):
    config = env_cls.env_config_cls(
        scripted_skill=0.5, group_size=group_size, max_turns=6, estimator=estimator
    )
    asked = Asked(**{"seconds": 60, "seeds": 2, "steps": 8, **asked})
    return asyncio.run(
        lint_rewards(env_cls, config, asked=asked, learning_rate=rate, folder=folder, say=lambda _: None)
    )


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    folder = tmp_path_factory.mktemp("learn") / "paid"
    return folder, learned(PaidCallsEnv, folder)


def said(values, about):
    return [verdict["text"] for verdict in values["verdicts"] if verdict["about"] == about]


def test_it_learns_by_the_estimator_of_the_environment(trial):
    _, values = trial
    assert values["estimator"] == "turn_return"


def test_a_reward_for_each_call_is_named_as_gamed(trial):
    _, values = trial
    (text,) = said(values, "gamed")
    assert text.startswith("calls: ")
    assert "with no better outcome" in text


def test_the_score_is_seen_to_rise(trial):
    _, values = trial
    assert said(values, "learnable")[0].startswith("yes: the score rises")


def test_the_pass_rate_is_what_evaluate_would_say(trial):
    _, values = trial
    assert "; passed " in said(values, "learnable")[0]
    changes = {each["name"]: each for each in values["changes"]}
    assert {key: changes["passed"][key] for key in ("start", "end", "reference")} == {
        key: changes["outcome"][key] for key in ("start", "end", "reference")
    }


def test_each_group_is_in_the_record_with_who_played_and_which_weights(trial):
    folder, _ = trial
    for seed in (0, 1):
        groups = list(read_groups(RunFolder(folder / "turn_return" / f"seed-{seed}").record))
        assert len(groups) == 3 + 2 * 8 + 3
        assert {group.policy for group in groups} == {f"learned:turn_return:seed-{seed}"}
        versions = [group.group.trajectories[0].turns[0].weight_version for group in groups]
        assert versions == [
            f"step-{step}" for step in (0, 0, 0, *(group // 2 for group in range(16)), 8, 8, 8)
        ]
    reference = list(read_groups(RunFolder(folder / "reference").record))
    assert {group.policy for group in reference} == {"scripted agent at skill 1"}


def test_curves_have_a_value_for_each_seed_and_step(trial):
    _, values = trial
    curves = values["curves"]
    assert [[len(seed) for seed in curve] for curve in curves.values()] == [[8, 8]] * len(curves)


def test_the_likeliest_choice_of_a_state_comes_first_and_all_add_up(trial):
    _, values = trial
    state = values["states"][0]
    shares = [choice["probability"] for choice in state["choices"]]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(1)


def test_the_folder_has_the_values_and_the_page(trial):
    folder, values = trial
    assert json.loads((folder / RESULT).read_text()) == values
    assert (folder / PAGE).stat().st_size > 10_000


def test_equal_trials_find_the_same(tmp_path):
    first, second = (learned(PaidCallsEnv, tmp_path / name, steps=3) for name in "ab")
    assert {**first, "seconds": 0} == {**second, "seconds": 0}


def test_no_step_leaves_the_policy_as_it_was(tmp_path):
    values = learned(PaidCallsEnv, tmp_path / "still", steps=0, seeds=1)
    assert all(each["start"] == each["end"] for each in values["changes"])


def test_an_estimator_that_does_not_exist_is_refused_before_anything_plays(tmp_path):
    with pytest.raises(CreditError, match="no estimator 'nonsense'"):
        learned(PaidCallsEnv, tmp_path / "x", estimator="nonsense")


def test_one_choice_at_every_turn_is_nothing_to_learn(tmp_path):
    with pytest.raises(ConfigError, match="one choice at every turn"):
        learned(OneChoiceEnv, tmp_path / "x")


def test_an_environment_whose_first_rollouts_all_break_is_told_why(tmp_path):
    with pytest.raises(RunError, match=r"every group of the reference failed.*ZeroDivisionError: no colours"):
        learned(BrokenEnv, tmp_path / "x")


def test_rollouts_that_break_are_counted_and_end_nothing(tmp_path):
    values = learned(FlakyEnv, tmp_path / "x", estimator="rloo", steps=4)
    (text,) = [each for each in said(values, "note") if "rollouts broke" in each]
    assert "ConnectionError: the database is away" in text


def test_a_step_of_which_nothing_is_left_ends_the_trial(tmp_path):
    with pytest.raises(RunError, match=r"every group of .* failed.*ConnectionError: the database is gone"):
        learned(DownEnv, tmp_path / "x", estimator="rloo", steps=4)


def test_a_trial_too_long_for_its_seconds_is_refused_before_it_begins(tmp_path):
    with pytest.raises(ConfigError, match="give --seconds"):
        learned(PaidCallsEnv, tmp_path / "x", seconds=0.01, steps=500)


class PathsEnv(PaidCallsEnv):
    """What can be said begins in as many ways as paths do."""

    def scripted_choices(self, item, messages, tools, skill):
        return [Choice(probability=0.5, message=say(text)) for text in ("/etc", COLOURS[item["word"]])]


def test_choices_that_look_like_paths_are_shown_as_they_are(tmp_path):
    values = learned(PathsEnv, tmp_path, estimator="rloo", seeds=1, steps=1)
    messages = {each["message"] for each in values["states"][0]["choices"]}
    assert "/etc" in messages


def test_an_estimator_without_siblings_to_compare_is_said_to_teach_nothing(tmp_path):
    values = learned(PaidCallsEnv, tmp_path, estimator="rloo", seeds=1, steps=1, group_size=1)
    assert "no group of any step gave credit to learn from with rloo" in said(values, "note")


def test_an_unknown_estimator_leaves_a_former_trial_where_it_is(tmp_path):
    (tmp_path / "learn").mkdir()
    (tmp_path / "learn" / "record.jsonl").write_text("mine")
    with pytest.raises(CreditError):
        learned(PaidCallsEnv, tmp_path / "learn", estimator="nope")
    assert [each.name for each in tmp_path.iterdir()] == ["learn"]


def test_a_fast_environment_gets_the_largest_plan():
    assert plan_within(Asked(seconds=60), group_s=0.01, items=100) == Plan(seeds=3, steps=25, items=8)


def test_a_slow_one_gets_fewer_steps_then_fewer_seeds():
    plans = [plan_within(Asked(seconds=60), group_s=seconds, items=100) for seconds in (0.2, 0.75, 1.9)]
    assert [(plan.seeds, plan.steps) for plan in plans] == [(3, 25), (2, 15), (2, 6)]


def test_what_is_asked_for_stays_and_few_items_are_all_played():
    plan = plan_within(Asked(seconds=60, seeds=5, steps=7), group_s=0.01, items=2)
    assert (plan.seeds, plan.steps, plan.items) == (5, 7, 2)


def test_no_steps_are_few_enough_to_be_asked_for():
    assert plan_within(Asked(seconds=60, steps=0), group_s=0.01, items=9).steps == 0


def test_an_environment_that_is_too_slow_is_told_how_long_it_takes():
    with pytest.raises(ConfigError, match=r"a group takes about 20 s here.* give --seconds 1060"):
        plan_within(Asked(seconds=60), group_s=20.0, items=100)


def test_the_groups_of_a_plan_are_those_of_reference_starts_steps_and_ends():
    assert Plan(seeds=3, steps=10, items=4).groups == 4 + 3 * 4 + 3 * (4 + 2 * 10)
