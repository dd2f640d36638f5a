"""The report by the proxy states what is true of games whose best γ is known, and only that."""

import json
from dataclasses import replace

import numpy as np
import pytest

from environments.credit import credited
from environments.testing import group_of
from tests.benchmarks.credit_report_truth import GAMES, NAMES, false_statements, truth_of
from tests.turnwise.lab.credit_report.token_games import Game, credited_groups, game, play, with_tokens
from tools.errors import CreditError
from turnwise.lab.credit_report.arms import DEFAULT_ARMS, Arm, all_arms
from turnwise.lab.credit_report.report import credit_report
from turnwise.lab.credit_report.signal_noise import Comparison, Interval


def cells(report):
    return {row[0]: row[1:] for row in report["table"]}


@pytest.mark.parametrize(
    ("name", "stated"),
    [
        ("independent, noise 0", ["noise", "direction", "groups"]),
        ("trap", ["noise", "direction"]),
        ("nothing to learn", ["noise"]),
    ],
)
def test_twenty_groups_state_what_other_code_computes(name, stated):
    truth, draw = truth_of(GAMES[name], groups=2_000), np.random.default_rng(5)
    for _ in range(2):
        report = credit_report(credited_groups(play(GAMES[name], 20, draw)))
        assert [what for what in ("noise", "direction", "groups") if report["rows"][2][what]] == stated
        for texts, row in zip(report["table"], report["rows"], strict=True):
            figures = {
                name: row[name] and Interval(**row[name]) for name in ("noise", "groups", "groups_until")
            }
            comparison = Comparison(direction=row["direction"], **figures)
            assert not false_statements(comparison, NAMES.index(texts[0]), truth)


def test_fewer_groups_are_the_decision_where_turns_stand_by_themselves():
    decision = credit_report(game(groups=60))["sentences"][0]
    assert decision.startswith("γ = 0 needs ")
    assert " × fewer groups than γ = 1: " in decision


def test_less_noise_is_no_decision():
    report = credit_report(game("delayed", noise=0.0, groups=60))
    assert "less" in cells(report)["γ = 0"][0]
    decision, worst = report["sentences"]
    assert decision == "no arm needs fewer groups than γ = 1 here"
    assert " × as many groups as γ = 1: " in worst


def test_an_arm_that_climbs_the_wrong_way_is_named():
    report = credit_report(game("trap", noise=0.5, groups=40))
    assert cells(report)["γ = 0"][1] == "against"
    assert report["sentences"][-1] == "against γ = 1, which is unbiased, point here: γ = 0"


def test_the_groups_that_an_arm_needs_are_no_question_where_it_climbs_the_wrong_way():
    arms = [arm for arm in DEFAULT_ARMS if arm.gamma in (1.0, 0.0)]
    decision = credit_report(game("trap", noise=0.5, groups=40), arms=arms)["sentences"][0]
    assert decision == "no arm needs fewer groups than γ = 1 here"


def test_where_it_cannot_tell_it_says_how_many_groups_could():
    decision = credit_report(game(groups=20, seed=3))["sentences"][0]
    assert decision == (
        "cannot tell whether γ = 0.7 needs fewer or more groups than γ = 1: that takes 28 to 69 groups, "
        "and 20 are here"
    )


def test_more_than_ten_times_the_groups_here_are_not_counted():
    decision = credit_report(game("nothing", turns=2, groups=8, seed=13))["sentences"][0]
    assert decision.endswith("that takes more than 10 × the 8 groups here")


def test_with_fewer_groups_than_eight_nothing_is_stated():
    report = credit_report(game(groups=7))
    assert {text for texts in cells(report).values() for text in texts} == {"\N{EN DASH}"}
    assert report["sentences"] == ["cannot tell: a statement needs 8 items with credit, and 7 are here"]


def test_epochs_of_an_item_are_one_unit():
    groups = [
        replace(each, group=replace(each.group, item_id=f"{i % 7}")) for i, each in enumerate(game(groups=14))
    ]
    assert credit_report(groups)["sentences"][0].endswith("and 7 are here")


def test_rows_that_are_all_paid_alike_leave_nothing_to_choose():
    flat = [
        replace(each, group=replace(each.group, trajectories=each.group.trajectories[:1] * 2))
        for each in game(groups=10)
    ]
    report = credit_report(flat)
    json.dumps(report, allow_nan=False)
    assert all(row["noise"] is None for row in report["rows"])


def test_arms_are_three_more_gammas_and_the_scalar():
    arms = [(row["estimator"], row["gamma"]) for row in credit_report(game(groups=8))["rows"]]
    assert arms == [("turn_return", 0.7), ("turn_return", 0.5), ("turn_return", 0.0), ("rloo", None)]


def test_arms_that_cannot_apply_are_left_out_with_a_word():
    of_states = ("gigpo", "hgpo", "gagpo", "rtmc", "salt", "tree_grpo")
    arms = (*DEFAULT_ARMS, *(Arm(estimator=name) for name in of_states))
    report = credit_report(game(turns=1, groups=10), arms=arms)
    same = "the same as γ = 1 here"
    assert report["left_out"] == dict.fromkeys(["γ = 0.7", "γ = 0.5", "γ = 0", "rloo"], same) | dict.fromkeys(
        of_states, "no state_key"
    )
    assert report["sentences"] == ["nothing to choose: no arm differs from γ = 1 here"]


def test_all_arms_are_every_gamma_and_baseline_and_each_other_estimator():
    report = credit_report(game(groups=8), arms=all_arms())
    names = [*cells(report), *report["left_out"]]
    assert len(set(names)) == len(names) == len(all_arms()) - 1
    assert {"turn_return, γ = 0.5, loo_total", "grpo", "reinforce_pp"} <= set(names)


def test_noise_is_not_compared_between_arms_of_different_scales():
    row = credit_report(game(groups=20), arms=(*DEFAULT_ARMS, Arm(estimator="grpo")))["table"][-1]
    assert row[:2] == ["grpo", "\N{EN DASH}"]


def test_figures_do_not_depend_on_the_unit_of_rewards():
    draws = [np.random.default_rng(1) for _ in range(2)]
    ones, large = (play(Game(), 20, draw) for draw in draws)
    large = replace(large, rewards=large.rewards * 2.0**40)
    assert credit_report(credited_groups(ones))["table"] == credit_report(credited_groups(large))["table"]


def test_withheld_siblings_count_in_the_size_of_their_group():
    groups = list(game(groups=12))
    stale = [
        replace(
            each,
            group=replace(
                each.group,
                trajectories=(each.group.trajectories[0].withhold("old"), *each.group.trajectories[1:]),
            ),
        )
        for each in groups
    ]
    assert credit_report(stale)["rows"][0]["noise"] != credit_report(groups)["rows"][0]["noise"]


def test_a_record_without_tokens_is_refused():
    bare = group_of([[1.0], [0.0]])
    empty = with_tokens(bare, [[((), ())], [((), ())]])
    groups = [credited(replace(empty, item_id=str(i)), "turn_return", policy="text") for i in range(4)]
    with pytest.raises(CreditError, match="no tokens of a trained turn"):
        credit_report(groups)
