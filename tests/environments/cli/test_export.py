"""`turnwise export` writes what a trainer would get."""

from dataclasses import replace

import orjson
import pytest
from click.testing import CliRunner

from environments.cli.export import command
from environments.record.recorder import Recorder
from environments.testing import group_of
from environments.trajectory import CreditedGroup
from environments.wire.columns import columns_of, list_scores
from environments.wire.views import VIEWS
from tools.errors import RecordError

OK = CreditedGroup(
    group=replace(group_of([[1.0, 2.0], [0.5]]), group_id="g", item_id="a"),
    advantages=((0.5, -0.5), (1.0,)),
    policy="p",
    estimator="turn_return",
)
TIED = replace(
    OK,
    group=replace(OK.group, item_id="b"),
    advantages=((0.0, 0.0), (0.0,)),
    status="no_credit",
    reason="every advantage is zero",
)


@pytest.fixture
def record(tmp_path):
    with Recorder(tmp_path / "r.jsonl") as recorder:
        recorder.append(OK)
        recorder.append(TIED)
    return tmp_path / "r.jsonl"


def export(*args):
    return CliRunner().invoke(command, [str(each) for each in args], catch_exceptions=False)


@pytest.mark.parametrize("view", [*VIEWS, "list_scores"])
def test_each_line_is_a_group_of_the_view(record, tmp_path, view):
    export(record, "--view", view, "--out", tmp_path / "out.jsonl")
    written = [orjson.loads(line) for line in (tmp_path / "out.jsonl").read_bytes().splitlines()]
    assert written == ([list_scores(OK)] if view == "list_scores" else list(map(columns_of, VIEWS[view](OK))))


@pytest.mark.parametrize("weighting", ["once", "repeated"])
def test_prefix_rows_are_weighted_as_asked(record, tmp_path, weighting):
    asked = ("--view", "prefix_rows", "--prefix-weighting", weighting, "--score-divisor", 1)
    export(record, *asked, "--out", tmp_path / "out.jsonl")
    written = [orjson.loads(line)["scores"] for line in (tmp_path / "out.jsonl").read_bytes().splitlines()]
    assert written == [[1.0 if weighting == "once" else 0.5], [-1.0], [1.0]]


def test_the_record_itself_is_never_written_over(record):
    before = record.read_bytes()
    with pytest.raises(RecordError, match="exists; export writes a new file"):
        CliRunner().invoke(
            command, [str(record), "--out", str(record)], standalone_mode=False, catch_exceptions=False
        )
    assert record.read_bytes() == before


def test_the_former_name_of_the_option_is_still_understood(record, tmp_path):
    done = export(record, "--encoding", "turn_rows", "--out", tmp_path / "out.jsonl")
    assert "3 lines of turn_rows" in done.stderr


def test_it_says_what_it_left_out(record, tmp_path):
    done = export(record, "--view", "turn_rows", "--out", tmp_path / "out.jsonl")
    assert done.stderr == "1 groups as 3 lines of turn_rows; left out: 1 no_credit\n"


def test_a_record_with_a_malformed_group_leaves_no_file(tmp_path):
    with Recorder(tmp_path / "r.jsonl") as recorder:
        first = OK.group.trajectories[0]
        turns = (replace(first.turns[0], span=replace(first.turns[0].span, end=9)), first.turns[1])
        broken = replace(OK.group, trajectories=(replace(first, turns=turns), OK.group.trajectories[1]))
        recorder.append(replace(OK, group=broken))
    with pytest.raises(RecordError, match=r"r\.jsonl, line 1: row 0"):
        export(tmp_path / "r.jsonl", "--out", tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()
