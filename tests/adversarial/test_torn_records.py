"""A record that ends in the middle of a line, as of a killed run: all readers take the same groups."""

from dataclasses import replace

import pytest

from environments.record.recorder import read_contents, read_groups
from environments.testing import group_of
from tests.turnwise.viewer.pages import recorded
from turnwise import records
from turnwise.cli.main import main

READERS = {
    "groups": lambda path, _: len(list(read_groups(path))),
    "contents": lambda path, _: len(read_contents(path).finished),
    "load": lambda path, _: len(set(records.load(path, cache_dir=path.parent)["item_id"])),
    "credit": lambda path, out: written(out, "credit", path, "--estimator", "grpo"),
    "export": lambda path, out: written(out, "export", path, "--view", "token_advantages"),
}

OUT = {"credit": "--write", "export": "--out"}


def written(out, command, path, *options):
    assert main([command, str(path), *options, OUT[command], str(out)]) == 0
    return len(out.read_bytes().splitlines())


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize(("cut", "groups"), [(0, 2), (1, 2), (2, 1), (300, 1), (None, 0)], ids=str)
def test_every_reader_takes_the_whole_lines_and_no_other(tmp_path, read, cut, groups):
    record = recorded(
        tmp_path / "r.jsonl", *(replace(group_of([[1.0], [0.0]]), item_id=name) for name in "ab")
    )
    content = record.read_bytes()
    record.write_bytes(content[:100] if cut is None else content[: len(content) - cut])
    assert read(record, tmp_path / "out.jsonl") == groups


@pytest.mark.parametrize(
    "command", ["credit --estimator grpo", "export --view prompt_response"], ids=["credit", "export"]
)
def test_what_makes_a_file_of_a_cut_record_says_so(tmp_path, caplog, command):
    record = recorded(tmp_path / "r.jsonl", group_of([[1.0], [0.0]]))
    whole = record.read_bytes()
    record.write_bytes(whole + whole[:100])
    name, *options = command.split()
    assert written(tmp_path / "out.jsonl", name, record, *options) > 0
    assert caplog.messages == [f"{record}: line 2 is cut short, as by a killed run, and left out"]
