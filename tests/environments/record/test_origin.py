"""Whether two runs may share a file is one comparison."""

from dataclasses import replace

import pytest

from environments.record.origin import RunOrigin, differences, digest, refuse_other_run
from tools.errors import RecordError

ORIGIN = RunOrigin(
    env="a",
    policy="p",
    estimator="gigpo",
    estimator_params={"mode": "mean_norm", "gamma": 0.5},
    experiment={"turnwise": "0.1.0", "max_turns": "10", "code of a.py": digest(b"one")},
)


def changed(**experiment):
    return replace(ORIGIN, experiment={**ORIGIN.experiment, **experiment})


def test_the_order_of_facts_is_no_difference():
    reordered = replace(ORIGIN, experiment=dict(reversed(ORIGIN.experiment.items())))
    assert reordered.fingerprint == ORIGIN.fingerprint


@pytest.mark.parametrize(
    "other",
    [replace(ORIGIN, env="b"), replace(ORIGIN, policy="q"), changed(max_turns="20"), changed(new="1")],
)
def test_another_experiment_has_another_fingerprint(other):
    assert other.fingerprint != ORIGIN.fingerprint


def test_credit_is_no_part_of_the_fingerprint():
    other = replace(ORIGIN, estimator="grpo", estimator_params={}, view="turn_rows")
    assert other.fingerprint == ORIGIN.fingerprint


def test_each_difference_is_told_in_words():
    now = changed(max_turns="20", extra="1", **{"code of a.py": digest(b"two")})
    before = replace(ORIGIN, experiment={**ORIGIN.experiment, "old": "1"})
    assert differences(before.facts(), now.facts()) == [
        "code of a.py changed",
        "extra is new",
        "max_turns was 10, is 20",
        "old is gone",
    ]


def test_a_long_value_is_cut_where_it_is_told():
    (told,) = differences({"prompt": "x" * 1000}, {"prompt": "y"})
    assert len(told) < 120


@pytest.mark.parametrize("view", [None, "turn_rows"])
def test_an_origin_comes_back_from_its_file(view):
    origin = replace(ORIGIN, view=view)
    assert RunOrigin.from_json(origin.to_json()) == origin


def test_the_refusal_is_one_line_that_says_what_to_do():
    with pytest.raises(RecordError) as refusal:
        refuse_other_run("r.jsonl", ["max_turns was 10, is 20"], instead="choose another --out")
    assert str(refusal.value) == (
        "r.jsonl holds groups of another run (max_turns was 10, is 20); choose another --out"
    )


def test_a_refusal_with_many_differences_stays_readable():
    with pytest.raises(RecordError, match="and 88 more"):
        refuse_other_run("r.jsonl", [f"item {n} changed" for n in range(100)], instead="")


def test_of_another_environment_only_its_name_is_told():
    before, now = {"env": "a", "seed": "1", "code of a.py": "x"}, {"env": "b", "seed": "2"}
    assert differences(before, now) == ["env was a, is b"]
