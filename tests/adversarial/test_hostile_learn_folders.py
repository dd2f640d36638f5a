"""`turnwise learn` in folders that cannot be had: one line, exit code 2, and nothing of anybody's is lost."""

from pathlib import Path

import pytest

from turnwise.cli.main import main
from turnwise.lab.learning.arms import opened_folder


def refused(out, capfd):
    assert main(["learn", "--seeds", "1", "--steps", "1", "--out", str(out)]) == 2
    told = capfd.readouterr()
    assert told.err.count("\n") == 1
    assert "Traceback" not in told.err
    return told.err


def test_what_is_no_folder_is_told_in_a_line(tmp_path, capfd):
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("mine")
    link.symlink_to(tmp_path / "nowhere")
    assert "it is a file" in refused(file, capfd)
    assert "cannot write" in refused(file / "below", capfd)
    assert "cannot write" in refused(link, capfd)
    refused(tmp_path / ("x" * 300), capfd)
    assert file.read_text() == "mine"


def test_a_folder_of_somebody_elses_is_left_alone(tmp_path, capfd):
    (tmp_path / "notes.txt").write_text("mine")
    assert "holds something else" in refused(tmp_path, capfd)
    assert [each.name for each in tmp_path.iterdir()] == ["notes.txt"]


def test_a_folder_that_another_process_writes_is_left_to_it(tmp_path, capfd):
    out = tmp_path / "out"
    with opened_folder(out, print):
        assert "another process" in refused(out, capfd)
    assert [each.name for each in tmp_path.iterdir()] == ["out"]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="a folder that root cannot write, either")
def test_a_folder_that_may_not_be_written(capfd):
    assert "cannot write" in refused(Path("/proc/learn"), capfd)
