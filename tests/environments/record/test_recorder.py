"""The record: what is written is on disk, comes back equal, and resumes."""

import os
import resource
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from environments.record.group_line import encode_group, with_crc
from environments.record.recorder import Recorder, new_record, read_contents, read_groups, serialise
from tests.environments.record.recorded import TWO, credited, edit
from tools.errors import RecordError


def test_a_new_record_is_on_disk_before_it_takes_its_name(tmp_path, monkeypatch):
    path = tmp_path / "new.jsonl"
    synced = []
    sync = os.fsync

    def fsync(fd):
        (unfinished,) = tmp_path.glob(".new.jsonl.*.part")
        if os.path.samestat(os.fstat(fd), unfinished.stat()):
            synced.append(unfinished.stat().st_size)
        sync(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    with new_record(path, doing="a test") as recorder:
        recorder.append(credited(TWO))
    assert synced == [path.stat().st_size]


@pytest.mark.parametrize("each_on_disk", [True, False])
def test_artefacts_are_on_disk_before_the_line_that_names_them(tmp_path, monkeypatch, each_on_disk):
    line, _ = serialise(credited(TWO), fingerprint=None)
    with Recorder(tmp_path / "r.jsonl", each_on_disk=each_on_disk) as recorder:
        synced, sync = [], os.fsync

        def fsync(fd):
            synced.append(Path(f"/proc/self/fd/{fd}").readlink().name)
            sync(fd)

        monkeypatch.setattr(os, "fsync", fsync)
        recorder.append_line(replace(line, artefacts=b"contents"))
    named = [name.rpartition(".zip")[0] or name for name in synced]
    assert named == [f".{line.group_id}", "r.jsonl.artefacts", *(["r.jsonl"] if each_on_disk else [])]


def test_reopening_knows_what_is_finished(tmp_path):
    path = tmp_path / "r.jsonl"
    with Recorder(path) as recorder:
        recorder.append(credited(TWO, "a"))
        recorder.append(credited(TWO, "b", epoch=1, status="no_credit"))
    with Recorder(path) as recorder:
        assert recorder.finished == {("a", 0), ("b", 1)}


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


EDITED = ("rows", "prompt", "turns", "advantages", "rewards")


@pytest.mark.parametrize("crc", [bytes, with_crc], ids=["without", "with a crc"])
def test_a_malformed_line_in_the_middle_is_named_and_left_alone(tmp_path, crc):
    path = tmp_path / "r.jsonl"
    line = encode_group(credited(TWO))
    for broken in (b"{broken\n", line.replace(b'"epoch":0', b'"epoch":', 1)):
        content = b"".join(map(crc, (line, broken, line)))
        path.write_bytes(content)
        with pytest.raises(RecordError, match=r"r\.jsonl, line 2: not JSON"):
            Recorder(path)
        assert path.read_bytes() == content


def test_lines_edited_and_sorted_by_hand_are_read_anew(tmp_path):
    path = tmp_path / "r.jsonl"
    with Recorder(path) as recorder:
        recorder.append(credited(TWO, "a"))
        recorder.append(credited(TWO, "b"))
    edit(path, b'"item_id":"b"', b'"item_id":"q"')
    path.write_bytes(b"".join(reversed(path.read_bytes().splitlines(keepends=True))))
    with Recorder(path) as recorder:
        assert recorder.finished == {("q", 0), ("a", 0)}


def test_a_file_that_something_else_wrote_is_never_touched(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text('{"tokens": []}\n')
    with pytest.raises(RecordError, match=r"line 1: not a turnwise\.group/2 line"):
        Recorder(path)
    assert path.read_text() == '{"tokens": []}\n'


def test_a_line_whose_group_was_edited_into_something_else_is_refused(tmp_path):
    path = tmp_path / "r.jsonl"
    line = encode_group(credited(TWO))
    for name in ("item_id", "epoch", "fingerprint", "item_hash", "estimator_params", "status"):
        path.write_bytes(line + orjson.dumps(orjson.loads(line) | {name: [1]}) + b"\n")
        for opened in (Recorder, read_contents):
            with pytest.raises(RecordError, match=rf"r\.jsonl, line 2: .* {name}: \[1\]"):
                opened(path)


def test_a_line_whose_rollouts_were_edited_into_something_else_is_refused(tmp_path):
    path = tmp_path / "r.jsonl"
    line = encode_group(credited(TWO))
    fields = orjson.loads(line)
    first, *others = fields["trajectories"]
    for name, value in [
        ("status", "done"),
        ("failures", None),
        ("failures", ["lost"]),
        ("trajectories", {}),
        *(("trajectories", [first | {part: 1}, *others]) for part in first if part in EDITED),
    ]:
        path.write_bytes(line + orjson.dumps(fields | {name: value}) + b"\n")
        with pytest.raises(RecordError, match=rf"r\.jsonl, line 2: .* {name}"):
            Recorder(path)


def test_two_writers_at_once_are_refused_and_nothing_is_lost(tmp_path):
    path = tmp_path / "r.jsonl"
    with Recorder(path) as recorder:
        recorder.append(credited(TWO))
        with pytest.raises(RecordError, match="written by another process"):
            Recorder(path, fresh=True)
    assert len(list(read_groups(path))) == 1


def test_a_file_that_is_no_record_is_not_emptied(tmp_path):
    path = tmp_path / "items.jsonl"
    path.write_text('{"id": "mine"}\n')
    with pytest.raises(RecordError, match="is no record, which --fresh could empty"):
        Recorder(path, fresh=True)
    assert path.read_text() == '{"id": "mine"}\n'


def test_an_output_that_cannot_be_written_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    for path, says in ((tmp_path / "file" / "r.jsonl", "cannot write"), (Path("/dev/full"), "not a regular")):
        with pytest.raises(RecordError, match=says):
            Recorder(path)


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


def test_kill_dash_nine_loses_at_most_the_group_in_flight(tmp_path):
    path = tmp_path / "r.jsonl"
    writer = """
import sys
from pathlib import Path
from environments.record.recorder import Recorder
from tests.environments.record.recorded import TWO, credited, edit
with Recorder(Path(sys.argv[1])) as recorder:
    for number in range(10_000):
        recorder.append(credited(TWO, str(number)))
        print(number, flush=True)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", writer, str(path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    for _ in range(5):
        acknowledged = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    process.wait()
    with Recorder(path) as recorder:
        assert {(str(n), 0) for n in range(acknowledged + 1)} <= recorder.finished
