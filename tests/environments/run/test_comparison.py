"""`turnwise compare`: two records side by side, paired by id and content."""

import json
import math
from dataclasses import replace

import pytest
from click.testing import CliRunner

from environments.record.recorder import Recorder
from environments.rollout.items.item_json import item_hash
from environments.run.evaluation import compare_sides, read_side
from environments.testing import group_of
from environments.trajectory import CreditedGroup, Failure
from tools.errors import RecordError
from turnwise.cli.evaluate import compare_command as command

LOST = Failure(sibling=9, stop_reason=None, error="E: x", traceback="", turns=0, error_class="E")


def group(identity, scores, *, passed=None, text="as it was", lost=0, epoch=0, known=True):
    made = group_of([[score] for score in scores])
    verdicts = [None] * len(scores) if passed is None else passed
    return replace(
        made,
        env="e",
        item_id=identity,
        epoch=epoch,
        item_hash=item_hash(text) if known else None,
        is_evaluation=passed is not None,
        failures=(LOST,) * lost,
        trajectories=tuple(
            replace(each, item_id=identity, passed=verdict)
            for each, verdict in zip(made.trajectories, verdicts, strict=True)
        ),
    )


def record(path, *groups):
    with Recorder(path) as recorder:
        for each in groups:
            failed = not each.trajectories
            recorder.append(
                CreditedGroup(
                    group=each,
                    advantages=tuple((0.0,) * len(t.turns) for t in each.trajectories),
                    policy="p",
                    estimator="grpo",
                    status="failed" if failed else "no_credit",
                    reason="an evaluation",
                )
            )
    return path


@pytest.fixture
def sides(tmp_path):
    def made(a, b, **options):
        read = [
            read_side(name, record(tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl", *groups), **options)
            for name, groups in (("a.jsonl", a), ("b.jsonl", b))
        ]
        return compare_sides(*read, all_items=True)

    return made


def test_items_are_paired_by_id_and_content_wherever_they_stand(sides):
    a = [group("x", [1.0]), group("y", [0.0])]
    numbers = sides(a, [group("y", [0.5]), group("x", [1.0])])
    assert numbers["score"]["difference"]["mean"] == 0.25
    assert [each["item_id"] for each in numbers["pairs"]] == ["x", "y"]

    numbers = sides([group("x", [1.0])], [group("x", [0.0], text="as it is")])
    assert numbers["items"] == {
        "paired": 0, "changed": ["x"], "unknown": [], "only_a": [], "only_b": [],
    }  # fmt: skip
    assert numbers["score"]["difference"] == {"mean": None, "low": None, "high": None, "items": 0}

    numbers = sides([group("x", [1.0]), group("only", [0.0])], [group("x", [1.0]), group("new", [5.0])])
    assert (numbers["items"]["only_a"], numbers["items"]["only_b"]) == (["only"], ["new"])
    assert (numbers["score"]["a"]["mean"], numbers["score"]["difference"]["mean"]) == (0.5, 0.0)

    numbers = sides([group("x", [1.0], known=False)], [group("x", [1.0])])
    assert (numbers["items"]["paired"], numbers["items"]["unknown"]) == (0, ["x"])


def test_pass_at_k_is_over_items_with_that_many_rollouts_and_lost_ones_bound_it(sides):
    a = [group("x", [1.0] * 2, passed=[True, False]), group("y", [1.0], passed=[True])]
    numbers = sides(a, a)
    assert numbers["pass_at"]["1"]["a"]["mean"] == 0.75
    assert (numbers["pass_at"]["2"]["a"]["mean"], numbers["pass_at"]["2"]["a"]["items"]) == (1.0, 1)
    numbers = sides([group("x", [1.0], passed=[True], lost=3)], [group("x", [1.0], passed=[True])])
    assert (numbers["pass_at"]["1"]["a"]["mean"], numbers["pass_at"]["1"]["a_at_least"]) == (1.0, 0.25)


def test_flips_are_items_that_pass_on_one_side(sides):
    a = [
        group("up", [0.0], passed=[False]),
        group("down", [1.0], passed=[True]),
        group("same", [1.0], passed=[True]),
    ]
    b = [
        group("up", [1.0], passed=[True]),
        group("down", [0.0], passed=[False]),
        group("same", [1.0], passed=[True]),
    ]
    assert {each["item_id"]: each["flip"] for each in sides(a, b)["flips"]} == {
        "up": "gained",
        "down": "lost",
    }


def test_a_pass_score_judges_rollouts_without_a_verdict_alone(sides):
    numbers = sides([group("x", [1.0])], [group("x", [0.0])])
    assert (numbers["pass_at"], numbers["flips"]) == ({}, [])
    numbers = sides([group("x", [1.0])], [group("x", [0.0])], pass_score=1.0)
    assert numbers["pass_at"]["1"]["difference"]["mean"] == -1.0
    assert numbers["a"]["passed_by_pass_score"] == 1
    judged = group("x", [1.0], passed=[False])
    assert sides([judged], [judged], pass_score=0.0)["pass_at"]["1"]["a"]["mean"] == 0.0


def test_the_interval_is_of_the_pairs_and_not_of_the_sides(sides):
    items = [(f"i{n}", float(n)) for n in range(20)]
    numbers = sides([group(i, [s]) for i, s in items], [group(i, [s + 0.5]) for i, s in items])
    difference = numbers["score"]["difference"]
    assert (difference["mean"], difference["low"], difference["high"]) == (0.5, 0.5, 0.5)
    assert numbers["score"]["a"]["high"] - numbers["score"]["a"]["low"] > 2
    assert sides([group("x", [1.0])], [group("x", [0.0])])["score"]["difference"]["low"] is None


def test_a_group_that_failed_and_was_done_again_counts_once(sides):
    lost = replace(group("x", [1.0], lost=2), trajectories=())
    numbers = sides([lost, group("x", [1.0])], [group("x", [1.0])])
    assert (numbers["a"]["lost_rollouts"], numbers["pairs"][0]["a"]["rollouts"]) == (0, 1)


def test_a_record_without_a_group_is_refused(tmp_path):
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(RecordError, match="holds no group"):
        read_side("empty", tmp_path / "empty.jsonl")


@pytest.fixture
def run_command(tmp_path):
    record(tmp_path / "a.jsonl", group("x", [1 / 3], passed=[False]), group("gone", [1.0], passed=[True]))
    record(tmp_path / "b.jsonl", group("x", [1.0], passed=[True]))

    def run(*options):
        places = [str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")]
        return CliRunner().invoke(command, [*places, *options], standalone_mode=False).output

    return run


def test_json_has_exact_numbers_no_nan_and_all_pairs_when_asked(run_command):
    numbers = json.loads(run_command("--json"), parse_constant=pytest.fail)
    assert numbers["score"]["difference"]["mean"] == 1.0 - 1 / 3
    assert not any(math.isnan(each) for each in numbers["score"]["a"].values() if each is not None)
    assert "pairs" not in numbers
    assert [each["item_id"] for each in json.loads(run_command("--json", "--items"))["pairs"]] == ["x"]


def test_the_text_says_what_is_paired_flipped_and_left_out(run_command):
    text = " ".join(run_command("--items").split())
    for said in (
        "1 items are paired, by id and content",
        "bootstraps over items, 2000 resamples, seed 0",
        "1 items are in A alone: gone",
        "1 items pass in B and not in A",
        "x: 0.333 (0 of 1 passed) -> 1.000 (1 of 1 passed)",
        "pass@1 0.500",
    ):
        assert said in text
