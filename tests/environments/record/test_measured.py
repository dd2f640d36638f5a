"""Parts of rewards and metrics: their means, in few names whatever comes."""

from dataclasses import replace

from environments.record.measured import MAX_NAMES, Measured, NamedSpreads
from environments.testing import group_of
from environments.trajectory import Rewards


def trajectory(metrics=None, **rewards):
    (made,) = group_of([[0.0, 0.0]]).trajectories
    return made.with_rewards(Rewards(score=0.0, **rewards), metrics or {})


def measured(*trajectories):
    made = Measured()
    for each in trajectories:
        made.add(each)
    return made


def rows(*trajectories):
    return dict(measured(*trajectories).rows())


def test_a_metric_has_its_mean_over_the_rollouts_that_noted_it():
    assert rows(trajectory({"a": 1.0}), trajectory({"a": 0.5, "b": 2.0})) == {
        "metrics": "a: 0.750 (2)  b: 2.000 (1)"
    }


def test_a_weighted_part_is_summed_over_turns_and_outcome():
    one = trajectory(turn_components=({"a": 0.25}, {"a": 0.5}), outcome_components={"a": 1.0, "b": 2.0})
    assert rows(one) == {"reward by part": "a: 1.750 (1)  b: 2.000 (1)"}


def test_a_raw_part_has_its_mean_over_turns_and_outcomes():
    one = trajectory(turn_raw=({"a": 0.0}, {"a": 1.0}), outcome_raw={"a": 0.5, "b": 3.0})
    assert rows(one) == {"before weights": "a: 0.500 (3)  b: 3.000 (1)"}


def test_what_was_not_measured_is_not_shown():
    unscored = replace(trajectory(), rewards=None)
    assert (rows(unscored), measured(unscored).headline()) == ({}, "")


def test_a_headline_has_a_few_parts_and_metrics():
    one = trajectory({"x": 1.0, "y": 1.0}, outcome_components={"a": 0.5, "b": 1.0})
    assert measured(one).headline() == "a 0.500, b 1.000, x 1.000, +1"


def test_names_without_end_are_only_counted():
    spreads = NamedSpreads()
    for number in range(1000):
        spreads.add({f"{number:04}": 1.0})
    assert len(spreads.spreads) == MAX_NAMES
    assert spreads.text().endswith(f"0019: 1.000 (1)  and {1000 - MAX_NAMES} numbers of other names")


def test_a_name_is_shown_in_one_line_and_cut():
    spreads = NamedSpreads()
    spreads.add({"a\n\x1b[2J b": 1.0, "c" * 1000: 2.0})
    assert spreads.text() == f"a [2J b: 1.000 (1)  {'c' * 39}…: 2.000 (1)"


def test_a_mean_that_overflows_is_left_out():
    spreads = NamedSpreads()
    for _ in range(3):
        spreads.add({"a": 1e308})
    assert (spreads.means(), spreads.text()) == ({}, "")
