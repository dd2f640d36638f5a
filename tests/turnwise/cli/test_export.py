"""`turnwise export` writes what a trainer would get."""

import stat
from dataclasses import replace

import orjson
import pytest
from click.testing import CliRunner

from environments.record.group_line import with_crc
from environments.record.prompt_response import prompt_response
from environments.record.recorder import Recorder
from environments.testing import group_of
from environments.trajectory import CreditedGroup
from environments.wire.training_rows import columns_of
from environments.wire.views import VIEWS, list_scores
from tests.tables import cases
from tools.errors import RecordError, UsageError
from turnwise.cli import export as export_module
from turnwise.cli.export import command

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
FAILED = replace(
    OK,
    group=replace(OK.group, item_id="c"),
    advantages=((0.0, 0.0), (0.0,)),
    status="failed",
    reason="it broke",
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


@cases(
    ("groups", "view", "said"),
    [
        ([OK, TIED], "turn_rows", "1 groups as 3 lines of turn_rows; left out: 1 no_credit\n"),
        (
            [OK, TIED, FAILED],
            "prompt_response",
            "2 groups as 6 lines of prompt_response; left out: 1 failed; 2 groups have no tools recorded\n",
        ),
        (
            [FAILED],
            "prompt_response",
            "0 groups as 0 lines of prompt_response; left out: 1 failed; the file is empty\n",
        ),
    ],
)
def test_it_says_what_it_wrote_and_left_out(tmp_path, groups, view, said):
    with Recorder(tmp_path / "r.jsonl") as recorder:
        for each in groups:
            recorder.append(each)
    assert export(tmp_path / "r.jsonl", "--view", view, "--out", tmp_path / "out.jsonl").stderr == said


def test_a_record_with_a_malformed_group_leaves_no_file(record, tmp_path):
    line = orjson.loads(record.read_bytes().splitlines()[0])
    line["trajectories"][0]["turns"][0]["span"]["end"] = 9
    record.write_bytes(with_crc(orjson.dumps(line) + b"\n"))
    with pytest.raises(RecordError, match=r"r\.jsonl, line 1: .*turn 0 of sibling 0"):
        export(record, "--out", tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()


def test_turns_of_a_group_without_credit_say_so(record, tmp_path):
    export(record, "--view", "prompt_response", "--out", tmp_path / "out.jsonl")
    lines = [orjson.loads(line) for line in (tmp_path / "out.jsonl").read_bytes().splitlines()]
    assert [line["status"] for line in lines] == ["ok"] * 3 + ["no_credit"] * 3


@pytest.mark.parametrize(
    ("view", "option", "value"),
    [("turn_rows", "--prefix-weighting", "once"), ("prompt_response", "--score-divisor", "9")],
    ids=["weighting", "divisor"],
)
def test_how_rows_are_scored_is_refused_where_none_are(record, tmp_path, view, option, value):
    with pytest.raises(UsageError, match=f"{option} is for --view .*, not {view}"):
        export(record, "--view", view, option, value, "--out", tmp_path / "out.jsonl")


def test_a_line_that_is_cut_leaves_no_file_of_text(record, tmp_path):
    with record.open("ab") as file:
        file.write(with_crc(b'{"schema": "turnwise.group/2", }\n'))
    with pytest.raises(RecordError, match=r"r\.jsonl, line 3: not JSON"):
        export(record, "--view", "prompt_response", "--out", tmp_path / "out.jsonl")
    assert [each.name for each in tmp_path.iterdir()] == ["r.jsonl"]


def test_folders_are_made_for_a_file_that_its_owner_alone_can_read(record, tmp_path):
    out = tmp_path / "new" / "folder" / "out.jsonl"
    export(record, "--view", "prompt_response", "--out", out)
    assert stat.S_IMODE(out.stat().st_mode) == 0o600


def test_the_help_names_every_view():
    shown = export("--help").stdout
    assert [
        view
        for view in (*VIEWS, "list_scores", "prompt_response", "parquet")
        if f"\n    {view} " not in shown
    ] == []


@pytest.mark.parametrize("view", VIEWS)
def test_views_of_tokens_say_that_nobody_knows_the_sampled_ones(tmp_path, view):
    rollouts = tuple(replace(each, exact=False) for each in OK.group.trajectories)
    with Recorder(tmp_path / "r.jsonl") as recorder:
        recorder.append(replace(OK, group=replace(OK.group, trajectories=rollouts)))
    done = export(tmp_path / "r.jsonl", "--view", view, "--out", tmp_path / "out.jsonl")
    assert "; 2 rollouts have rows made from text" in done.stderr


def test_two_exports_at_once_do_not_mix(record, tmp_path, monkeypatch):
    """The second one begins, and ends, while the first one writes."""
    others = []

    def with_another(credited, notes):
        if not others:
            others.append(None)
            with monkeypatch.context() as other:
                other.setattr("os.getpid", lambda: 1)
                export(record, "--view", "prompt_response", "--out", tmp_path / "out.jsonl")
        yield from prompt_response(credited, notes)

    monkeypatch.setattr(export_module, "prompt_response", with_another)
    export(record, "--view", "prompt_response", "--out", tmp_path / "out.jsonl")
    export(record, "--view", "prompt_response", "--out", tmp_path / "alone.jsonl")
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "alone.jsonl").read_bytes()
    assert not list(tmp_path.glob("*.part"))
