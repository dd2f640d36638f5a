"""The report by the proxy finds the γ that is known to be best, and says so where it can be told."""

import json
import math
from dataclasses import replace

import pytest

from environments.credit import credited
from environments.testing import group_of
from tests.turnwise.lab.credit_report.token_games import game, with_tokens
from tools.errors import CreditError
from turnwise.lab.credit_report.report import credit_report


def of_gamma(report):
    return {
        row["gamma"]: row["snr"]
        for row in report["rows"]
        if (row["estimator"], row["baseline"]) == ("turn_return", "loo_index")
    }


def said(report):
    return " ".join(report["sentences"])


def test_where_turns_stand_by_themselves_and_are_noisy_a_small_gamma_is_best():
    report = credit_report(game(turns=8))
    snr = of_gamma(report)
    assert min(snr[0.0], snr[0.5]) > snr[0.7] > snr[0.9] > snr[1.0]
    assert "× fewer groups than γ = 1 here; it bends the gradient by" in said(report)


def test_where_all_is_paid_at_the_end_gamma_0_loses_the_gradient():
    snr = of_gamma(credit_report(game("delayed", noise=0.0)))
    assert snr[1.0] > 2 * snr[0.0]


def test_where_a_key_is_paid_a_turn_later_gamma_0_is_nothing_and_a_middle_one_is_best():
    snr = of_gamma(credit_report(game("shifted", groups=100)))
    assert snr[0.0] < 0.3 * snr[1.0]
    assert max(snr, key=snr.get) in (0.9, 0.7, 0.5)


def test_a_difference_that_would_read_as_none_is_not_said():
    report = credit_report(game("chain", noise=0.0, right=0.6, seed=5))
    assert "γ = 0.9 needs" not in said(report)  # certain: 1.03 × fewer
    assert "1.0 ×" not in said(report)


def test_where_nothing_can_be_learned_it_cannot_tell():
    report = credit_report(game("nothing", seed=0))
    assert said(report).startswith("cannot tell: ")


def test_rows_that_are_all_paid_alike_are_finite():
    flat = [
        replace(each, group=replace(each.group, trajectories=each.group.trajectories[:1] * 2))
        for each in game(groups=5)
    ]
    rows = credit_report(flat)["rows"]
    json.dumps(rows, allow_nan=False)
    assert {row["groups_per_step"] for row in rows if row["snr"] == 0.0} == {None}


def test_arms_are_every_gamma_and_baseline_of_turn_return_and_each_other_estimator():
    rows = credit_report(game(groups=4))["rows"]
    arms = [(row["estimator"], row["gamma"], row["baseline"]) for row in rows]
    assert arms[0] == ("turn_return", 1.0, "loo_index")
    assert len(set(arms)) == len(arms)
    of_reference = {arm[1:] for arm in arms if arm[0] == "turn_return"}
    assert {gamma for gamma, baseline in of_reference if baseline == "loo_index"} == {1.0, 0.9, 0.7, 0.5, 0.0}
    assert {baseline for gamma, baseline in of_reference if gamma == 1.0} >= {"loo_total", "group_mean"}
    assert ("rloo", None, None) in arms


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
    rows = credit_report(stale)["rows"]
    assert rows[0]["snr"] != credit_report(groups)["rows"][0]["snr"]
    assert all(math.isfinite(row["snr"]) for row in rows)


def test_epochs_of_an_item_are_one_unit():
    groups = [
        replace(each, group=replace(each.group, item_id=f"{i % 2}")) for i, each in enumerate(game(groups=10))
    ]
    with pytest.raises(CreditError, match="it needs 3 items with a group to train on, and has 2"):
        credit_report(groups)


def test_a_record_without_tokens_is_refused():
    bare = group_of([[1.0], [0.0]])
    empty = with_tokens(bare, [[((), ())], [((), ())]])
    groups = [credited(replace(empty, item_id=str(i)), "turn_return", policy="text") for i in range(4)]
    with pytest.raises(CreditError, match="no tokens of a trained turn"):
        credit_report(groups)
