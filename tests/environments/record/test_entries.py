"""Where groups stand: known from the index without reading the record, and else from the record."""

import stat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.record import entries as entries_module
from environments.record import index_file
from environments.record.entries import read_entries, read_group_at
from environments.record.group_line import encode_group
from environments.record.index_file import index_path, read_index
from environments.record.recorder import Recorder, new_record, read_contents, read_groups
from tests.environments.record.any_group import Draw
from tests.environments.record.recorded import TWO, credited
from tools.errors import RecordError


@pytest.fixture(autouse=True)
def every_record_has_an_index(monkeypatch):
    """However small it is."""
    monkeypatch.setattr(index_file, "INDEXED_BYTES", 0)


@pytest.fixture
def record(tmp_path):
    """Three groups, written by one process."""
    path = tmp_path / "r.jsonl"
    with Recorder(path) as recorder:
        for name in ("a", "b", "c"):
            recorder.append(credited(TWO, name))
    return path


@pytest.fixture
def parsed(monkeypatch):
    """The numbers of the lines that were parsed to find out what a record holds."""
    numbers = []
    parse = entries_module.parse_line

    def counted(line, path, number):
        numbers.append(number)
        return parse(line, path, number)

    monkeypatch.setattr(entries_module, "parse_line", counted)
    return numbers


@pytest.fixture
def unchanged_is_trusted(monkeypatch):
    """A small record is taken for a large one, of which only the last line is compared."""
    monkeypatch.setattr(entries_module, "ALWAYS_CHECKED", 0)


def items(path):
    return [entry.facts["item_id"] for entry in read_entries(path)]


def test_a_resume_parses_no_line_that_the_index_knows(record, parsed):
    with Recorder(record) as recorder:
        assert recorder.finished == {("a", 0), ("b", 0), ("c", 0)}
    assert parsed == []


def test_lines_that_came_after_the_index_are_parsed_alone(record, parsed):
    with record.open("ab") as file:
        file.write(encode_group(credited(TWO, "d")))
    with Recorder(record) as recorder:
        assert ("d", 0) in recorder.finished
    assert parsed == [4]


def test_what_was_caught_up_with_is_known_from_then_on(record, parsed):
    with record.open("ab") as file:
        file.write(encode_group(credited(TWO, "d")))
    Recorder(record).close()
    parsed.clear()
    Recorder(record).close()
    assert (items(record), parsed) == (["a", "b", "c", "d"], [])


def test_the_index_written_with_the_groups_is_that_made_from_the_lines(tmp_path):
    record = tmp_path / "r.jsonl"
    with Recorder(record) as recorder:
        for seed in range(20):
            recorder.append(Draw(seed).credited())
    written = read_index(record).entries
    index_path(record).unlink()
    assert read_entries(record) == written


@given(st.lists(st.integers(0, 2**32), max_size=3))
@settings(max_examples=50, deadline=None)
def test_an_index_says_of_a_record_what_its_lines_say(tmp_path_factory, seeds):
    record = tmp_path_factory.mktemp("record") / "r.jsonl"
    with Recorder(record) as recorder:
        for seed in seeds:
            recorder.append(Draw(seed).credited())
    known = read_contents(record)
    index_path(record).unlink(missing_ok=True)
    assert known == read_contents(record)


def test_a_missing_index_is_made_anew(record):
    before = read_index(record).entries
    index_path(record).unlink()
    Recorder(record).close()
    assert read_index(record).entries == before


def test_reading_writes_no_index(record):
    index_path(record).unlink()
    assert items(record) == ["a", "b", "c"]
    assert not index_path(record).exists()


def test_an_index_is_its_owners_alone(record):
    assert stat.S_IMODE(index_path(record).stat().st_mode) == 0o600


def test_starting_over_leaves_nothing_in_the_index(record):
    Recorder(record, fresh=True).close()
    assert list(read_index(record).entries) == []


def test_a_group_is_read_at_its_place(record):
    second = read_entries(record)[1]
    assert read_group_at(record, second) == list(read_groups(record))[1]


def test_a_line_that_was_changed_since_it_was_looked_up_is_refused(record):
    second = read_entries(record)[1]
    record.write_bytes(record.read_bytes().replace(b'"ok"', b'"no"'))
    with pytest.raises(RecordError, match="line 2: it was changed"):
        read_group_at(record, second)


def test_a_torn_last_line_has_no_entry(record):
    with record.open("ab") as file:
        file.write(encode_group(credited(TWO, "d"))[:-40])
    assert items(record) == ["a", "b", "c"]


def test_a_record_without_a_file_cannot_be_read(tmp_path):
    with pytest.raises(RecordError, match="cannot read"):
        read_entries(tmp_path / "none.jsonl")


def test_a_new_record_leaves_no_index_of_its_unfinished_file(tmp_path):
    with new_record(tmp_path / "r.jsonl", doing="the test") as recorder:
        recorder.append(credited(TWO))
    assert [path.name for path in tmp_path.iterdir()] == ["r.jsonl"]


@pytest.mark.usefixtures("unchanged_is_trusted")
def test_of_a_large_record_that_nobody_changed_only_the_last_line_is_compared(record, monkeypatch):
    compared = []
    there = entries_module._is_there
    monkeypatch.setattr(
        entries_module, "_is_there", lambda entry, fd: compared.append(entry.number) or there(entry, fd)
    )
    assert items(record) == ["a", "b", "c"]
    assert compared == [3]


@pytest.mark.usefixtures("unchanged_is_trusted")
def test_a_large_record_that_was_copied_is_compared_line_by_line_and_then_known_again(record, parsed):
    copy = record.with_name("copy.jsonl")
    copy.write_bytes(record.read_bytes())
    index_path(copy).write_bytes(index_path(record).read_bytes())
    before = read_index(copy).stamp
    Recorder(copy).close()
    assert (items(copy), parsed) == (["a", "b", "c"], [])
    assert read_index(copy).stamp != before


def test_a_failed_group_is_failed_in_the_index(tmp_path):
    path = tmp_path / "r.jsonl"
    with Recorder(path) as recorder:
        recorder.append(credited(TWO, "a", status="failed"))
    with Recorder(path) as recorder:
        assert recorder.failed_before("a", 0)


def test_an_old_schema_is_known_from_the_index(tmp_path, parsed):
    path = tmp_path / "r.jsonl"
    path.write_bytes(encode_group(credited(TWO)).replace(b"turnwise.group/2", b"turnwise.group/1"))
    Recorder(path).close()
    parsed.clear()
    assert read_contents(path).old_schema == "turnwise.group/1"
    assert parsed == []


def test_a_small_record_has_no_index_until_it_is_large(tmp_path, monkeypatch):
    monkeypatch.setattr(index_file, "INDEXED_BYTES", 2 * len(encode_group(credited(TWO))))
    record = tmp_path / "r.jsonl"
    with Recorder(record) as recorder:
        recorder.append(credited(TWO, "a"))
        assert not index_path(record).exists()
    with Recorder(record) as recorder:
        recorder.append(credited(TWO, "b"))
        recorder.append(credited(TWO, "c"))
    assert [entry.facts["item_id"] for entry in read_index(record).entries] == ["a", "b", "c"]
