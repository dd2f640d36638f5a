"""Which weights played: counted by groups and rollouts, told in one line."""

from dataclasses import replace

import pytest

from environments.credit import credited
from environments.record.aggregates import aggregates, flat
from environments.record.recorder import Recorder, read_groups
from environments.record.summary import Summary
from environments.record.weight_totals import WeightTotals
from environments.testing import group_of


def sampled(*rows, **changes):
    """A group whose turns are of these versions, a letter each; `-` is unknown."""
    group = group_of([[float(index)] * len(row) for index, row in enumerate(rows)])
    return replace(
        group,
        trajectories=tuple(
            replace(
                each,
                turns=tuple(
                    replace(turn, weight_version=None if version == "-" else version)
                    for turn, version in zip(each.turns, row, strict=True)
                ),
            )
            for each, row in zip(group.trajectories, rows, strict=True)
        ),
        **changes,
    )


def totals(*groups):
    made = WeightTotals()
    for group in groups:
        made.add(group)
    return made


def test_groups_and_rollouts_are_counted_by_how_many_versions_sampled_them():
    values = totals(sampled("aa", "a"), sampled("ab", "b"), sampled("abc", "b"), sampled("a-", "a")).values()
    assert values["groups"] == {"1": 1, "2": 1, "more": 1, "unknown": 1}
    assert values["rollouts"] == {"1": 5, "2": 1, "more": 1, "unknown": 1}


def test_the_newest_version_is_the_one_that_was_seen_first_last():
    values = totals(sampled("a", "b"), sampled("b", "a")).values()
    assert (values["versions"], values["oldest"], values["newest"]) == (2, "a", "b")


def test_a_group_names_its_versions_as_its_turns_came():
    assert sampled("ab", "c").weight_versions == ("a", "c", "b")


@pytest.mark.parametrize(
    ("groups", "text"),
    [
        ([sampled("--")], ""),
        ([sampled("aa", "a")], "a"),
        ([sampled("aa", "ab")], "2 versions, a to b, groups of several 1, rollouts of several 1"),
        ([sampled("a"), sampled("-")], "a, groups of unknown ones 1"),
        ([sampled("a"), sampled("a", stale="stale: x")], "a, stale groups 1"),
    ],
    ids=["unknown", "one", "two", "mixed", "stale"],
)
def test_it_is_told_in_one_line(groups, text):
    assert totals(*groups).text() == text


def test_charts_have_their_numbers():
    summary = Summary()
    summary.add(credited(sampled("ab", "a"), "turn_return", policy="p"))
    numbers = flat(aggregates(summary), "group")
    assert {name: each for name, each in numbers.items() if "weights" in name} == {
        "group/weights/versions": 2.0,
        "group/weights/groups/2": 1.0,
        "group/weights/rollouts/2": 1.0,
        "group/weights/rollouts/1": 1.0,
        "group/weights/stale": 0.0,
    }


def test_a_stale_group_adds_no_advantages_to_the_numbers_of_credit():
    summary = Summary()
    summary.add(credited(sampled("a", "a", stale="stale: x"), "turn_return", policy="p"))
    numbers = aggregates(summary)
    assert numbers["credit"]["turns"] == 0
    assert numbers["by_turn"][0]["advantage"]["count"] == 0
    assert numbers["by_turn"][0]["reward"]["count"] == 2


def test_a_record_holds_what_is_stale(tmp_path):
    made = credited(sampled("a", "b", stale="stale: x"), "turn_return", policy="p")
    with Recorder(tmp_path / "r.jsonl") as recorder:
        recorder.append(made)
    (read,) = read_groups(tmp_path / "r.jsonl")
    assert (read.group.stale, read.status, read.group.weight_versions) == (
        "stale: x",
        "no_credit",
        ("a", "b"),
    )
