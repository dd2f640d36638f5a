"""The record: what is written is on disk, comes back equal, and resumes."""

import json
import os
import resource
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.record.recorder import Recorder, decode_group, encode_group, read_groups
from environments.testing import group_of
from environments.trajectory import CreditedGroup, Failure, StopReason
from tools.errors import RecordError
from tools.sandbox.base import SandboxLimits, SandboxRecord


def credited(group, item_id="a", epoch=0, status="ok"):
    return CreditedGroup(
        group=replace(group, item_id=item_id, epoch=epoch, env="toy", group_id=f"{item_id}-{epoch}"),
        advantages=tuple(tuple(0.5 for _ in t.turns) for t in group.trajectories),
        policy="scripted:0.6",
        estimator="turn_return",
        estimator_params={"gamma": 1.0},
        status=status,
    )


TWO = group_of([[1.0, None], [0.0]], outcomes=[2.0, None])

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


def test_a_line_is_on_disk_when_append_returns(tmp_path):
    path = tmp_path / "r.jsonl"
    with Recorder(path) as recorder:
        recorder.append(credited(TWO))
        assert [read.group.item_id for read in read_groups(path)] == ["a"]


def test_reopening_knows_what_is_finished(tmp_path):
    path = tmp_path / "r.jsonl"
    with Recorder(path) as recorder:
        recorder.append(credited(TWO, "a"))
        recorder.append(credited(TWO, "b", epoch=1, status="no_credit"))
    with Recorder(path) as recorder:
        assert recorder.finished == {("a", 0), ("b", 1)}


def test_a_failed_group_is_not_finished(tmp_path):
    path = tmp_path / "r.jsonl"
    with Recorder(path) as recorder:
        recorder.append(credited(TWO, "a", status="failed"))
    with Recorder(path) as recorder:
        assert recorder.finished == set()


def test_a_torn_last_line_is_cut_off_and_counted(tmp_path):
    path = tmp_path / "r.jsonl"
    with Recorder(path) as recorder:
        recorder.append(credited(TWO, "a"))
    whole = path.read_bytes()
    path.write_bytes(whole + encode_group(credited(TWO, "b"))[:-40])
    with Recorder(path) as recorder:
        assert recorder.torn_bytes > 0
        assert recorder.finished == {("a", 0)}
    assert path.read_bytes() == whole


def test_a_malformed_line_in_the_middle_is_named_and_left_alone(tmp_path):
    path = tmp_path / "r.jsonl"
    line = encode_group(credited(TWO))
    content = line + b"{broken\n" + line
    path.write_bytes(content)
    with pytest.raises(RecordError, match=r"r\.jsonl, line 2"):
        Recorder(path)
    assert path.read_bytes() == content


def test_a_file_that_something_else_wrote_is_never_touched(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text('{"tokens": []}\n')
    with pytest.raises(RecordError, match=r"line 1: not a turnwise\.group/1 line"):
        Recorder(path)
    assert path.read_text() == '{"tokens": []}\n'


def test_a_line_with_a_missing_field_names_it(tmp_path):
    path = tmp_path / "r.jsonl"
    fields = json.loads(encode_group(credited(TWO)))
    del fields["policy"]
    path.write_text(json.dumps(fields) + "\n")
    with pytest.raises(RecordError, match=r"line 1: .*policy"):
        list(read_groups(path))


def test_fresh_starts_over(tmp_path):
    path = tmp_path / "r.jsonl"
    with Recorder(path) as recorder:
        recorder.append(credited(TWO))
    with Recorder(path, fresh=True) as recorder:
        assert recorder.finished == set()
    assert path.read_bytes() == b""


def test_two_writers_at_once_are_refused_and_nothing_is_lost(tmp_path):
    path = tmp_path / "r.jsonl"
    with Recorder(path) as recorder:
        recorder.append(credited(TWO))
        with pytest.raises(RecordError, match="written by another process"):
            Recorder(path, fresh=True)
    assert len(list(read_groups(path))) == 1


def test_an_output_that_cannot_be_written_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="cannot write"):
        Recorder(tmp_path / "file" / "r.jsonl")


def test_a_full_disk_keeps_the_groups_before_it_and_leaves_no_half_line(tmp_path):
    path = tmp_path / "r.jsonl"
    with Recorder(path) as recorder:
        recorder.append(credited(TWO, "a"))
        whole = path.read_bytes()
        unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 50, unlimited[1]))
        try:
            with pytest.raises(RecordError, match="the groups before it are safe"):
                recorder.append(credited(TWO, "b"))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    assert path.read_bytes() == whole


def test_a_device_is_refused_as_output():
    with pytest.raises(RecordError, match="not a regular file"):
        Recorder(Path("/dev/full"))


def test_kill_dash_nine_loses_at_most_the_group_in_flight(tmp_path):
    path = tmp_path / "r.jsonl"
    writer = """
import sys
from pathlib import Path
from environments.record.recorder import Recorder
from tests_support import credited, TWO
with Recorder(Path(sys.argv[1])) as recorder:
    for number in range(10_000):
        recorder.append(credited(TWO, str(number)))
        print(number, flush=True)
"""
    (tmp_path / "tests_support.py").write_text(Path(__file__).read_text())
    process = subprocess.Popen(
        [sys.executable, "-c", writer, str(path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    for _ in range(5):
        acknowledged = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    process.wait()
    with Recorder(path) as recorder:
        assert {(str(n), 0) for n in range(acknowledged + 1)} <= recorder.finished
