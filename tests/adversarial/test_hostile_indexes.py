"""What becomes of a record whose index was torn, swapped, forged in part, or outlived by a changed record."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from environments.record import entries as entries_module
from environments.record import index_file
from environments.record.entries import read_entries
from environments.record.group_line import encode_group
from environments.record.index_file import index_path, read_index
from environments.record.recorder import Recorder, read_contents
from tests.environments.record.recorded import TWO, credited
from tools.errors import RecordError


@pytest.fixture(autouse=True)
def every_record_has_an_index(monkeypatch):
    """However small it is."""
    monkeypatch.setattr(index_file, "INDEXED_BYTES", 0)


@pytest.fixture
def record(tmp_path):
    return written(tmp_path / "r.jsonl", "a", "b", "c")


def written(path, *names):
    with Recorder(path) as recorder:
        for name in names:
            recorder.append(credited(TWO, name))
    return path


def finished(path):
    with Recorder(path) as recorder:
        return {item for item, _ in recorder.finished}


def assert_index_is_right(path):
    """What the index says afterwards is what the lines say."""
    known = read_index(path).entries
    index_path(path).unlink()
    assert list(known) == read_entries(path)


def test_an_index_torn_at_any_byte_costs_nothing(record):
    whole = index_path(record).read_bytes()
    for size in range(len(whole)):
        index_path(record).write_bytes(whole[:size])
        assert finished(record) == {"a", "b", "c"}
    assert_index_is_right(record)


def test_an_index_with_any_byte_changed_says_nothing_wrong(record):
    whole = index_path(record).read_bytes()
    right = read_contents(record)
    for at in range(0, len(whole), 3):
        index_path(record).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert read_contents(record) == right
    assert len(whole) > 0


def test_a_changed_index_is_made_right_by_the_next_run(record):
    whole = bytearray(index_path(record).read_bytes())
    whole[len(whole) // 2] ^= 1
    index_path(record).write_bytes(whole)
    with Recorder(record) as recorder:
        recorder.append(credited(TWO, "d"))
    assert finished(record) == {"a", "b", "c", "d"}
    assert_index_is_right(record)


def test_the_index_of_another_record_is_not_believed(tmp_path, record):
    other = written(tmp_path / "other.jsonl", "x", "y", "z")
    index_path(record).write_bytes(index_path(other).read_bytes())
    assert finished(record) == {"a", "b", "c"}
    assert_index_is_right(record)


def test_an_index_ahead_of_its_record_is_cut(record):
    lines = record.read_bytes().splitlines(keepends=True)
    record.write_bytes(b"".join(lines[:2]))
    assert finished(record) == {"a", "b"}
    assert_index_is_right(record)


def test_a_record_cut_within_a_line_is_known_up_to_there(record):
    record.write_bytes(record.read_bytes()[:-10])
    with Recorder(record) as recorder:
        assert recorder.torn_bytes > 0
        assert {item for item, _ in recorder.finished} == {"a", "b"}
    assert_index_is_right(record)


def test_a_record_replaced_by_one_of_equal_size_is_read_anew(tmp_path, record):
    written(tmp_path / "other.jsonl", "x", "y", "z").replace(record)
    assert finished(record) == {"x", "y", "z"}


def test_a_record_overwritten_in_place_by_one_of_equal_size_is_read_anew(tmp_path, record):
    record.write_bytes(written(tmp_path / "other.jsonl", "x", "y", "z").read_bytes())
    assert finished(record) == {"x", "y", "z"}


def test_a_line_edited_by_hand_is_read_anew(record):
    record.write_bytes(record.read_bytes().replace(b'"item_id":"b"', b'"item_id":"q"'))
    assert finished(record) == {"a", "q", "c"}
    assert_index_is_right(record)


def test_a_line_broken_by_hand_is_refused_by_its_number(record):
    record.write_bytes(record.read_bytes().replace(b'{"schema"', b'["schema"').replace(b"[", b"{", 1))
    with pytest.raises(RecordError, match=r"r\.jsonl, line 2: not JSON"):
        Recorder(record)


def test_lines_in_another_order_are_found_where_they_are(record):
    first, second, third = record.read_bytes().splitlines(keepends=True)
    record.write_bytes(third + first + second)
    assert [entry.facts["item_id"] for entry in read_entries(record)] == ["c", "a", "b"]


@pytest.fixture
def large(monkeypatch):
    """A small record is taken for one of which only the last line is compared where nothing seems changed."""
    monkeypatch.setattr(entries_module, "ALWAYS_CHECKED", 0)


@pytest.mark.usefixtures("large")
def test_a_large_record_edited_at_its_size_and_dated_back_is_read_anew(record):
    before = record.stat()
    while True:  # the clock of files goes on in steps, and the edit is of another step than the last group
        record.write_bytes(record.read_bytes().replace(b'"item_id":"b"', b'"item_id":"q"'))
        os.utime(record, ns=(before.st_atime_ns, before.st_mtime_ns))
        if record.stat().st_ctime_ns != before.st_ctime_ns:
            break
    assert finished(record) == {"a", "q", "c"}


@pytest.mark.usefixtures("large")
def test_a_line_edited_while_a_run_goes_on_is_not_vouched_for_by_the_next_group(record):
    with Recorder(record) as recorder:
        with record.open("r+b") as file:
            content = file.read()
            file.seek(0)
            file.write(content.replace(b'"item_id":"b"', b'"item_id":"q"', 1))
        os.utime(record)
        recorder.append(credited(TWO, "d"))
        recorder.append(credited(TWO, "e"))
    assert finished(record) == {"a", "q", "c", "d", "e"}
    assert_index_is_right(record)


@pytest.mark.usefixtures("large")
def test_a_record_from_the_future_is_known_by_its_index(record):
    os.utime(record, ns=(2**62, 2**62))
    assert finished(record) == {"a", "b", "c"}


@pytest.mark.parametrize("kind", ["folder", "pipe", "link", "others_file", "read_only"])
def test_what_stands_in_the_place_of_an_index_is_left_alone(record, kind, tmp_path):
    index = index_path(record)
    index.unlink()
    victim = tmp_path / "victim"
    victim.write_text("mine\n")
    if kind == "folder":
        index.mkdir()
    elif kind == "pipe":
        os.mkfifo(index)
    elif kind == "link":
        index.symlink_to(victim)
    else:
        index.write_text("mine\n")
        index.chmod(0o400 if kind == "read_only" else 0o600)
    with Recorder(record) as recorder:
        recorder.append(credited(TWO, "d"))
    assert finished(record) == {"a", "b", "c", "d"}
    assert victim.read_text() == "mine\n"
    if kind in ("others_file", "read_only"):
        assert index.read_text() == "mine\n"


def test_a_second_writer_is_refused_and_harms_no_index(record):
    with Recorder(record) as recorder:
        with pytest.raises(RecordError, match="written by another process"):
            Recorder(record, fresh=True)
        recorder.append(credited(TWO, "d"))
    assert_index_is_right(record)


def test_an_index_is_no_record(record):
    for read in (Recorder, read_contents):
        with pytest.raises(RecordError, match="line 1: not JSON"):
            read(index_path(record))
    assert finished(record) == {"a", "b", "c"}


WRITER = """
import sys
from pathlib import Path
from environments.record import index_file
from environments.record.recorder import Recorder
from tests.environments.record.recorded import TWO, credited
index_file.INDEXED_BYTES = 0
with Recorder(Path(sys.argv[1]), each_on_disk=False) as recorder:
    for number in range(1_000_000):
        recorder.append(credited(TWO, str(recorder.written + len(recorder.finished))))
        print(number, flush=True)
"""


def test_kill_dash_nine_at_any_moment_leaves_an_index_that_says_what_the_record_says(tmp_path):
    record = tmp_path / "r.jsonl"
    for groups in (1, 2, 7, 20):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(record)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        for _ in range(groups):
            writer.stdout.readline()
        writer.kill()
        writer.wait()
        by_index = read_contents(record)
        with_index = index_path(record).read_bytes()
        index_path(record).unlink()
        assert by_index == read_contents(record)
        index_path(record).write_bytes(with_index)


def test_a_group_whose_entry_could_not_be_written_is_found_by_the_next_run(record, monkeypatch):
    with Recorder(record) as recorder:
        recorder._index.close()
        recorder.append(credited(TWO, "d"))
    assert finished(record) == {"a", "b", "c", "d"}
    assert_index_is_right(record)


def test_a_group_that_was_written_by_hand_after_the_index_counts(record):
    with record.open("ab") as file:
        file.write(encode_group(credited(TWO, "d")))
    assert finished(record) == {"a", "b", "c", "d"}
    assert_index_is_right(record)
