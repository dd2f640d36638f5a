"""Lines are on disk before they count, whole, and nobody else's: by the few calls of `os` that do it."""

import os
from pathlib import Path

import pytest

from environments.record import private_file
from environments.record.private_file import AppendFile
from tools.errors import RecordError


class Calls:
    """The module `os` with its changes of files written down; one of them can be made to fail."""

    def __init__(self, fail=None, most_bytes=None):
        self.log = []
        self.fail = fail
        self.most_bytes = most_bytes

    def __getattr__(self, name):
        return getattr(os, name)

    def _done(self, name, *details):
        self.log.append((name, *details))
        if self.fail == name:
            raise OSError(28, "No space left on device")

    def write(self, fd, data):
        data = bytes(data[: self.most_bytes])
        self._done("write", data)
        return os.write(fd, data)

    def fsync(self, fd):
        self._done("fsync")
        os.fsync(fd)

    def ftruncate(self, fd, length):
        self._done("ftruncate", length)
        os.ftruncate(fd, length)


@pytest.fixture
def opened(tmp_path, monkeypatch):
    files = []

    def open_file(calls=None, *, fresh=False):
        monkeypatch.setattr(private_file, "os", calls or os)
        files.append(AppendFile(tmp_path / "r.jsonl", fresh=fresh))
        return files[-1]

    yield open_file
    for file in files:
        file.close()


def test_a_line_is_written_then_synced_before_append_returns(opened):
    calls = Calls()
    file = opened(calls)
    calls.log.clear()
    file.append(b"one\n")
    assert calls.log == [("write", b"one\n"), ("fsync",)]


def test_a_line_that_the_system_takes_in_parts_is_written_whole_and_synced_once(opened):
    calls = Calls(most_bytes=2)
    file = opened(calls)
    calls.log.clear()
    file.append(b"three\n")
    assert calls.log == [("write", b"th"), ("write", b"re"), ("write", b"e\n"), ("fsync",)]


def test_the_folder_of_a_new_file_is_synced_too(opened):
    calls = Calls()
    opened(calls)
    assert calls.log == [("fsync",)]


@pytest.mark.parametrize("step", ["write", "fsync"])
def test_a_line_that_is_not_on_disk_is_cut_off_and_not_acknowledged(opened, step):
    calls = Calls()
    file = opened(calls)
    file.append(b"one\n")
    calls.fail = step
    with pytest.raises(RecordError, match="No space left on device; the groups before it are safe"):
        file.append(b"two\n")
    assert file.path.read_bytes() == b"one\n"


def test_after_a_failure_nothing_is_written_any_more(opened):
    calls = Calls()
    file = opened(calls)
    calls.fail = "fsync"
    with pytest.raises(RecordError):
        file.append(b"one\n")
    calls.fail = None
    with pytest.raises(RecordError, match="No space left"):
        file.append(b"two\n")
    assert file.path.read_bytes() == b""


def test_a_torn_line_that_could_not_be_cut_off_is_found_by_the_next_run(opened, monkeypatch):
    calls = Calls(most_bytes=3)
    file = opened(calls)
    file.append(b"one\n")

    def fails(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(calls, "ftruncate", fails, raising=False)
    calls.fail = "fsync"
    with pytest.raises(RecordError):
        file.append(b"two")
    file.close()
    again = opened()
    assert list(again.whole_lines()) == [b"one\n"]
    assert again.cut_torn_line() == 3
    again.append(b"new\n")
    assert again.path.read_bytes() == b"one\nnew\n"


@pytest.mark.parametrize("torn", [b"t", b"torn", b"\x00" * 5000])
def test_a_torn_end_is_cut_off_to_the_byte(opened, tmp_path, torn):
    (tmp_path / "r.jsonl").write_bytes(b"one\ntwo\n" + torn)
    file = opened()
    assert list(file.whole_lines()) == [b"one\n", b"two\n"]
    assert file.cut_torn_line() == len(torn)
    assert file.path.read_bytes() == b"one\ntwo\n"


def test_a_whole_file_is_not_touched_when_it_is_opened(opened, tmp_path):
    (tmp_path / "r.jsonl").write_bytes(b"one\n")
    calls = Calls()
    file = opened(calls)
    list(file.whole_lines())
    assert file.cut_torn_line() == 0
    assert ("ftruncate", 4) not in calls.log


def test_a_file_that_is_made_is_its_owners_alone(opened):
    assert opened().path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_was_opened_and_closed_leaves_no_descriptor(tmp_path):
    def open_here():
        # Not their number, which what other tests left may change.
        opened = [each.resolve() for each in Path("/proc/self/fd").iterdir()]
        return [each for each in opened if each.is_relative_to(tmp_path)]

    file = AppendFile(tmp_path / "r.jsonl", fresh=False)
    assert open_here()
    file.close()
    assert open_here() == []
