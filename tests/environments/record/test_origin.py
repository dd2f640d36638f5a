"""Whether two runs may share a file is one comparison."""

from dataclasses import replace

import pytest

from environments.record.origin import RunOrigin, origin_from_json, refuse_other_run
from tools.errors import RecordError

ORIGIN = RunOrigin(
    env="a", policy="p", estimator="gigpo", estimator_params={"mode": "mean_norm", "gamma": 0.5}, group_size=4
)


def test_the_same_run_differs_in_nothing():
    assert ORIGIN.differences(replace(ORIGIN, estimator_params={"gamma": 0.5, "mode": "mean_norm"})) == []


def test_each_difference_says_what_was_and_what_is():
    now = replace(ORIGIN, env="b", estimator_params={"gamma": 1.0, "mode": "mean_norm"})
    assert now.differences(ORIGIN) == [
        "env was 'a', is 'b'",
        """estimator_params was '{"gamma":0.5,"mode":"mean_norm"}', is '{"gamma":1.0,"mode":"mean_norm"}'""",
    ]


def test_a_view_that_only_one_of_them_knows_is_no_difference():
    assert ORIGIN.differences(replace(ORIGIN, view="turn_rows")) == []
    assert replace(ORIGIN, view="turn_rows").differences(ORIGIN) == []


@pytest.mark.parametrize("view", [None, "turn_rows"])
def test_an_origin_comes_back_from_its_file(view):
    origin = replace(ORIGIN, view=view)
    assert origin_from_json(origin.to_json()) == origin


def test_the_refusal_is_one_line_that_says_what_to_do():
    with pytest.raises(RecordError) as refusal:
        refuse_other_run("r.jsonl", ORIGIN, replace(ORIGIN, group_size=8), instead="choose another --out")
    assert str(refusal.value) == (
        "r.jsonl holds groups of another run (group_size was '4', is '8'); choose another --out"
    )


def test_a_file_without_groups_takes_any_run():
    refuse_other_run("r.jsonl", None, ORIGIN, instead="")
