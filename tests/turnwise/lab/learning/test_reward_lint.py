"""Estimators tried on an environment that pays for calls: what is found, and what stands in its folder."""

import asyncio
import json

import pytest

from environments.record.recorder import read_groups
from environments.record.run_folder import RunFolder
from tests.tables import cases
from tests.turnwise.lab.learning.paid_calls_env import (
    BrokenEnv,
    DownEnv,
    FlakyEnv,
    OneChoiceEnv,
    PaidCallsEnv,
)
from tools.errors import ConfigError, CreditError, RunError
from turnwise.lab.learning.arms import RESULT
from turnwise.lab.learning.reward_lint import PAGE, Asked, Plan, lint_rewards, plan_within


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


def test_a_reward_for_each_call_is_named_as_gamed_and_the_score_is_seen_to_rise(trial):
    _, values = trial
    assert values["estimator"] == "turn_return"
    (gamed,), (learnable,) = said(values, "gamed"), said(values, "learnable")
    assert gamed.startswith("calls: ")
    assert "with no better outcome" in gamed
    assert learnable.startswith("yes: the score rises")


def test_the_pass_rate_is_what_evaluate_would_find(trial):
    _, values = trial
    assert "; passed " in said(values, "learnable")[0]
    passed, outcome = (
        next(each for each in values["changes"] if each["name"] == name) for name in ("passed", "outcome")
    )
    assert passed == {**outcome, "name": "passed"}


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


def test_the_folder_has_the_values_and_the_page(trial):
    folder, values = trial
    assert json.loads((folder / RESULT).read_text()) == values
    assert (folder / PAGE).stat().st_size > 10_000
    assert [[len(seed) for seed in curve] for curve in values["curves"].values()] == [[8, 8]] * len(
        values["curves"]
    )
    shares = [choice["probability"] for choice in values["states"][0]["choices"]]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(1)


def test_equal_trials_find_the_same(tmp_path):
    first, second = (learned(PaidCallsEnv, tmp_path / name, steps=3) for name in "ab")
    assert {**first, "seconds": 0} == {**second, "seconds": 0}


@cases(
    ("env_cls", "asked", "error", "message"),
    [
        (PaidCallsEnv, {"estimator": "nonsense"}, CreditError, "no estimator 'nonsense'"),
        (PaidCallsEnv, {"seconds": 0.01, "steps": 500}, ConfigError, "give --seconds"),
        (OneChoiceEnv, {}, ConfigError, "one choice at every turn"),
        (BrokenEnv, {}, RunError, "every group of the reference failed.*ZeroDivisionError: no colours"),
        (
            DownEnv,
            {"estimator": "rloo", "steps": 4},
            RunError,
            "every group of .* failed.*ConnectionError: the database is gone",
        ),
    ],
    ids=["estimator", "too long", "one choice", "first rollouts break", "nothing is left of a step"],
)
def test_what_teaches_nothing_is_refused_and_why(tmp_path, env_cls, asked, error, message):
    with pytest.raises(error, match=message):
        learned(env_cls, tmp_path / "x", **asked)


def test_rollouts_that_break_are_counted_and_end_nothing(tmp_path):
    values = learned(FlakyEnv, tmp_path / "x", estimator="rloo", steps=4)
    (text,) = [each for each in said(values, "note") if "rollouts broke" in each]
    assert "ConnectionError: the database is away" in text


def test_an_estimator_without_siblings_to_compare_is_said_to_teach_nothing(tmp_path):
    values = learned(PaidCallsEnv, tmp_path, estimator="rloo", seeds=1, steps=1, group_size=1)
    (text,) = [each for each in said(values, "note") if "nothing to learn from" in each]
    assert text.startswith("with rloo nothing to learn from in 2 groups: 2 no credit (a single rollout is")
    assert text.endswith("; take more siblings, --env.group_size 4 or more")


def test_the_plan_is_the_largest_that_fits_with_what_is_asked_for():
    def plan(group_s, items=100, **asked):
        found = plan_within(Asked(seconds=60, **asked), group_s=group_s, items=items)
        return found.seeds, found.steps, found.items

    assert [plan(seconds) for seconds in (0.01, 0.2, 0.75, 1.9)] == [
        (3, 25, 8),
        (3, 25, 8),
        (2, 15, 6),
        (2, 6, 4),
    ]
    assert plan(0.01, items=2, seeds=5, steps=7) == (5, 7, 2)
    assert plan(0.01, items=9, steps=0) == (3, 0, 8)
    assert Plan(seeds=3, steps=10, items=4).groups == 4 + 3 * 4 + 3 * (4 + 2 * 10)
    with pytest.raises(ConfigError, match=r"a group takes about 20 s here.* give --seconds 1060"):
        plan_within(Asked(seconds=60), group_s=20.0, items=100)
