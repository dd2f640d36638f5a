"""Summary, comparison, page and terminal give the same numbers of the same record."""

import gzip
import json
from dataclasses import replace

import pytest

from environments.credit.crediting import credited
from environments.record.group_line import encode_group
from environments.record.recorder import read_contents
from environments.record.totals import Summary
from environments.run.evaluation import read_side
from environments.run.run_list import unique_groups
from environments.testing import group_of
from environments.trajectory import Failure
from tests.turnwise.viewer.pages import content, page
from turnwise.viewer.page_server import LiveRecord


def done(item, rewards, **fields):
    named = {"item_id": item, "group_id": f"group of {item}", "env": "toy"}
    group = replace(group_of(rewards), **named, **fields)
    return credited(group, policy="p", estimator="turn_return")


@pytest.fixture
def record(tmp_path):
    """A group that failed and was done again, one with a lost sibling and turns that were not scored."""
    lost = Failure(sibling=2, stop_reason=None, error="ValueError: no", traceback="", turns=1)
    again = done("a", [[1.0, 0.5], [0.25]])
    first = replace(again, status="failed", reason="a failure")
    path = tmp_path / "record.jsonl"
    groups = [first, done("b", [[1.0, None], [None]], failures=(lost,)), again]
    path.write_bytes(b"".join(map(encode_group, groups)))
    return path


def summed(record):
    summary = Summary()
    for each in unique_groups(record, read_contents(record).finished):
        summary.add(each)
    return json.loads(json.dumps(summary.values()))


def test_a_group_that_failed_and_was_done_again_counts_once_on_a_page(record):
    assert page(record)["index"]["aggregates"] == summed(record)


def test_a_comparison_has_the_numbers_of_the_page(record):
    assert json.loads(json.dumps(read_side("a", record).values()["aggregates"])) == summed(record)


def test_a_live_page_counts_what_failed_before_once(record):
    live = LiveRecord(record, content, None)
    assert json.loads(gzip.decompress(live.index()))["aggregates"] == summed(record)


def test_a_live_page_counts_what_is_done_again_while_it_is_read_once(record):
    first, *later = record.read_bytes().splitlines(keepends=True)
    record.write_bytes(first + b"no line\n")
    live = LiveRecord(record, content, None)
    live.index()
    with record.open("ab") as file:
        file.writelines(later)
    shown = json.loads(gzip.decompress(live.index()))["aggregates"]
    record.write_bytes(first + b"".join(later))
    assert shown == summed(record)


def test_the_page_says_which_rollouts_of_an_evaluation_passed(tmp_path):
    made = done("a", [[1.0], [0.0]])
    judged = [replace(each, passed=not index) for index, each in enumerate(made.group.trajectories)]
    group = replace(made.group, is_evaluation=True, trajectories=tuple(judged))
    path = tmp_path / "record.jsonl"
    path.write_bytes(encode_group(replace(made, group=group, status="no_credit", reason="an evaluation")))
    (shown,) = page(path)["index"]["groups"]
    assert [each["passed"] for each in shown["rollouts"]] == [True, False]
