"""A line of the record: what is read is equal to what was written, in every schema that ever was."""

import json
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.record.group_line import decode_group, encode_group
from environments.record.recorder import read_groups
from environments.testing import group_of
from environments.trajectory import Failure, StopReason
from tests.environments.record.recorded import TWO, credited
from tests.environments.wire.golden_groups import CASES
from tools.errors import RecordError
from tools.sandbox.base import SandboxLimits, SandboxRecord

SCHEMA_1 = Path(__file__).with_name("group_1.jsonl")
"""Written by the first version: an anchor was a turn's `state` then."""


def anchors(credited):
    return [[turn.anchor for turn in trajectory.turns] for trajectory in credited.group.trajectories]


REWARD = st.none() | st.floats(-1e300, 1e300)
GROUPS = st.lists(st.lists(REWARD, min_size=1, max_size=5), min_size=1, max_size=4)


@given(GROUPS, st.data())
def test_a_group_comes_back_equal(tmp_path_factory, turn_rewards, data):
    outcomes = [data.draw(REWARD) for _ in turn_rewards]
    written = credited(group_of(turn_rewards, outcomes=outcomes))
    assert decode_group(encode_group(written), tmp_path_factory.getbasetemp() / "x", 1) == written


def test_rows_without_logprobs_come_back_without(tmp_path):
    trajectories = tuple(
        replace(t, rows=tuple(replace(row, logprobs=None) for row in t.rows)) if t.sibling else t
        for t in TWO.trajectories
    )
    written = credited(replace(TWO, trajectories=trajectories))
    assert decode_group(encode_group(written), tmp_path / "x", 1) == written


def test_failures_and_the_sandbox_come_back_equal(tmp_path):
    failure = Failure(
        sibling=2, stop_reason=StopReason.SANDBOX_LOST, error="E: x", traceback="Traceback…", turns=3
    )
    sandbox = SandboxRecord(backend="local", tier="A", limits=SandboxLimits(), enforced=("memory", "pids"))
    trajectories = tuple(replace(t, sandbox=sandbox) for t in TWO.trajectories)
    written = credited(replace(TWO, trajectories=trajectories, failures=(failure,)))
    assert decode_group(encode_group(written), tmp_path / "x", 1) == written


def test_scores_are_a_list_per_trajectory_with_turn_rewards():
    assert json.loads(encode_group(credited(TWO)))["scores"] == [[1.0, None], [0.0]]


def test_scores_are_scalars_without_turn_rewards():
    group = group_of(None, outcomes=[1.0, 0.25], lengths=[[1], [1, 1]])
    assert json.loads(encode_group(credited(group)))["scores"] == [1.0, 0.25]


def test_an_unscored_turn_is_null_on_disk_and_zero_is_zero():
    line = encode_group(credited(group_of([[None, 0.0]])))
    assert json.loads(line)["scores"] == [[None, 0.0]]


def test_a_line_with_a_missing_field_names_it(tmp_path):
    path = tmp_path / "r.jsonl"
    fields = json.loads(encode_group(credited(TWO)))
    del fields["policy"]
    path.write_text(json.dumps(fields) + "\n")
    with pytest.raises(RecordError, match=r"line 1: .*policy"):
        list(read_groups(path))


def test_a_record_of_the_first_schema_is_read():
    groups = list(read_groups(SCHEMA_1))
    assert [(each.group.item_id, each.status) for each in groups] == [
        ("a", "ok"), ("item", "ok"), ("c", "failed"), ("item", "ok"), ("item", "ok")
    ]  # fmt: skip
    assert anchors(groups[0]) == [["start", "a"], ["start"]]
    assert groups[0].group.failures[0].stop_reason is StopReason.SANDBOX_LOST
    assert (groups[1], groups[3], groups[4]) == (CASES["unknown_logprobs"], CASES["forked"], CASES["scalar"])


def test_a_line_of_the_first_schema_is_written_as_it_was():
    lines = b"".join(map(encode_group, read_groups(SCHEMA_1)))
    assert lines == SCHEMA_1.read_bytes()


def test_a_turn_may_call_its_anchor_by_that_name(tmp_path):
    line = SCHEMA_1.read_bytes().splitlines()[0].replace(b'"state":', b'"anchor":')
    assert anchors(decode_group(line, tmp_path, 1)) == [["start", "a"], ["start"]]


@pytest.mark.parametrize("turn", [[], "turn", None, {"anchor": "a"}])
def test_a_turn_that_is_none_is_named(tmp_path, turn):
    fields = orjson.loads(encode_group(credited(TWO)))
    fields["trajectories"][0]["turns"] = [turn]
    with pytest.raises(RecordError, match=r"line 7: not a turnwise\.group/1 line"):
        decode_group(orjson.dumps(fields), tmp_path, 7)
