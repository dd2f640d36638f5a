"""Removing what an agent left, however it left it."""

import os
from pathlib import Path

import pytest

from tools.sandbox.host import trees


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "folder"
    path.mkdir()
    return path


def test_a_depth_beyond_any_path_is_removed(folder):
    inner = os.open(folder, os.O_PATH)
    for _ in range(2500):
        os.mkdir("ab", dir_fd=inner)
        outer, inner = inner, os.open("ab", os.O_PATH, dir_fd=inner)
        os.close(outer)
    os.close(inner)
    trees.remove(str(folder))
    if folder.exists():  # `remove` does not say why
        top = trees._opened(None, str(folder))
        trees._empty(top)
        pytest.fail("only a second try removed all of it")


def test_closed_folders_are_removed(folder):
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "file").write_text("x")
    for path in (folder / "a" / "b", folder / "a", folder):
        path.chmod(0)
    trees.remove(str(folder))
    assert not folder.exists()


def test_nothing_behind_a_link_is_touched(folder, tmp_path):
    (tmp_path / "host").mkdir(mode=0o750)
    (tmp_path / "host" / "file").write_text("kept")
    (folder / "link").symlink_to(tmp_path / "host")
    (folder / "deep").mkdir()
    (folder / "deep" / "link").symlink_to(tmp_path / "host")
    trees.remove(str(folder))
    assert not folder.exists()
    assert (tmp_path / "host" / "file").read_text() == "kept"
    assert (tmp_path / "host").stat().st_mode & 0o777 == 0o750


def test_a_link_in_place_of_the_folder_is_left_alone(folder, tmp_path):
    (folder / "file").write_text("kept")
    (tmp_path / "link").symlink_to(folder)
    trees.remove(str(tmp_path / "link"))
    assert (folder / "file").read_text() == "kept"


def test_pipes_and_odd_names_are_removed(folder):
    os.mkfifo(folder / "pipe")
    (folder / "a\nb").mkdir()
    (folder / "a\nb" / "-rf").write_text("x")
    trees.remove(str(folder))
    assert not folder.exists()


def test_a_folder_that_is_gone_is_no_error(tmp_path):
    trees.remove(str(tmp_path / "none"))


def test_no_descriptor_is_kept(folder):
    (folder / "a" / "b").mkdir(parents=True)
    before = len(list(Path("/proc/self/fd").iterdir()))
    trees.remove(str(folder))
    assert len(list(Path("/proc/self/fd").iterdir())) == before
