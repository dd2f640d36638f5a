"""A record that grows while it is looked at."""

import gzip
import json

import pytest

from environments.testing import group_of
from tests.turnwise.viewer.pages import content, page, recorded
from turnwise.viewer.page_server import LiveRecord

GROUP = group_of([[1.0, 2.0], [0.0]])


@pytest.fixture
def lines(tmp_path):
    """The lines of a record of three groups."""
    return recorded(tmp_path / "whole.jsonl", GROUP, GROUP, GROUP).read_bytes().splitlines(keepends=True)


@pytest.fixture
def live(tmp_path):
    return LiveRecord(tmp_path / "live.jsonl", content, None)


def read(block):
    return json.loads(gzip.decompress(block))


def test_groups_appear_as_they_are_written(live, lines):
    counts = []
    for line in lines:
        with live.path.open("ab") as file:
            file.write(line)
        counts.append(len(read(live.index())["groups"]))

    assert counts == [1, 2, 3]


def test_a_page_that_knows_some_groups_is_given_those_that_follow(live, lines):
    live.path.write_bytes(b"".join(lines))

    index = read(live.index(after=2))

    assert [group["item"] for group in index["groups"]] == ["item 2"]
    assert index["live"]


def test_a_torn_line_waits_for_its_end(live, lines):
    live.path.write_bytes(lines[0] + lines[1][:100])
    before = read(live.index())
    with live.path.open("ab") as file:
        file.write(lines[1][100:])

    assert len(before["groups"]) == 1
    assert len(read(live.index())["groups"]) == 2


def test_blocks_are_those_of_the_file(live, lines, tmp_path):
    live.path.write_bytes(b"".join(lines))
    live.index()

    of_file = page(tmp_path / "whole.jsonl")

    for name in ("g1", "g2r0p0", "g3r1p0"):
        assert read(live.block(name)) == of_file[name]


@pytest.mark.parametrize("name", ["g9", "g1r9p0", "", "index", "../g1", "g1\n", "g²"])
def test_there_is_no_other_block(live, lines, name):
    live.path.write_bytes(lines[0])
    live.index()

    assert live.block(name) is None


def test_a_record_that_was_emptied_is_read_anew(live, lines):
    live.path.write_bytes(b"".join(lines))
    live.index()
    live.path.write_bytes(lines[2])

    assert [group["item"] for group in read(live.index())["groups"]] == ["item 2"]


def test_a_record_that_is_gone_stays_on_the_page(live, lines):
    live.path.write_bytes(b"".join(lines))
    live.index()
    live.path.unlink()

    index = read(live.index())

    assert len(index["groups"]) == 3
    assert "cannot be read" in index["cut"][-1]


def test_a_malformed_line_is_named_and_the_others_are_shown(live, lines):
    live.path.write_bytes(lines[0] + b"{}\n" + lines[2])

    index = read(live.index())

    assert [group["item"] for group in index["groups"]] == ["item 0", "item 2"]
    assert index["cut"][-1] == "line 2, which is malformed"
