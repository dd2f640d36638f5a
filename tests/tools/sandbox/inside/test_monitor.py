"""Counting a folder: over its bounds only while it grows, whatever is in it."""

import os

import pytest

from tools.sandbox.inside import monitor
from tools.sandbox.inside.monitor import Quota

KB = 1024


@pytest.fixture
def every_time(monkeypatch):
    """Each look counts, as if long ago had been the last time."""
    monkeypatch.setattr(monitor, "_RECOUNT_S", -1.0)
    monkeypatch.setattr(monitor, "_SHARE", 0)
    monkeypatch.setattr(Quota, "_due", lambda self, free: True)


@pytest.fixture
def looks(tmp_path, every_time):
    bounded = Quota(str(tmp_path), 100 * KB, 50)

    def look():
        bounded._stale = True
        return bounded.look()[0]

    return look


def test_a_folder_below_its_bounds_is_not_over(looks, tmp_path):
    (tmp_path / "file").write_bytes(b"x" * 50 * KB)
    assert not looks()


def test_more_bytes_than_allowed_are_over_until_nothing_is_added(looks, tmp_path):
    (tmp_path / "file").write_bytes(b"x" * 200 * KB)
    assert looks()
    assert not looks()
    (tmp_path / "more").write_bytes(b"x" * 20 * KB)
    assert looks()


def test_removing_while_still_over_is_allowed(looks, tmp_path):
    for name in "abc":
        (tmp_path / name).write_bytes(b"x" * 100 * KB)
    assert looks()
    (tmp_path / "a").unlink()
    assert not looks()


def test_more_files_than_allowed_are_over_even_when_empty(looks, tmp_path):
    (tmp_path / "deep").mkdir()
    for number in range(60):
        (tmp_path / "deep" / str(number)).touch()
    assert looks()


def test_links_to_one_file_count_once(looks, tmp_path):
    (tmp_path / "file").write_bytes(b"x" * 60 * KB)
    os.link(tmp_path / "file", tmp_path / "same")
    assert not looks()


def test_what_a_link_leads_to_is_not_counted(looks, tmp_path_factory, tmp_path):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "file").write_bytes(b"x" * 200 * KB)
    (tmp_path / "link").symlink_to(elsewhere)
    (tmp_path / "file-link").symlink_to(elsewhere / "file")
    assert not looks()


def test_a_quiet_file_system_is_looked_at_seldom(tmp_path, monkeypatch):
    bounded = Quota(str(tmp_path), 100 * KB, 50)
    same = os.statvfs(tmp_path)
    monkeypatch.setattr(os, "statvfs", lambda path: same)
    first = bounded.look()[1]
    assert bounded.look()[1] > first


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_a_folder_that_its_owner_closed_is_counted_all_the_same(tmp_path):
    make_closed(tmp_path / "closed", tmp_path)
    assert as_another_user(tmp_path, lambda: Quota(".", 100 * KB, 50)._count()[1]) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_a_closed_folder_behind_a_link_is_left_as_it_is(tmp_path):
    make_closed(tmp_path / "elsewhere" / "closed", tmp_path, tmp_path / "elsewhere")
    (tmp_path / "counted").mkdir()
    (tmp_path / "counted" / "link").symlink_to("../elsewhere")
    root = str(tmp_path / "counted")
    assert as_another_user(tmp_path, lambda: len(monitor._entries("counted/link/closed", root))) == 0
    assert (tmp_path / "elsewhere" / "closed").stat().st_mode & 0o777 == 0o300


def make_closed(folder, *parents):
    """A folder of another user with a file in it, which nobody may list."""
    folder.mkdir(parents=True)
    (folder / "file").write_bytes(b"x" * 50 * KB)
    for each in (*parents, folder):
        os.chown(each, 65534, 65534)
    folder.chmod(0o300)


def as_another_user(folder, count):
    """A small number that is computed by another user, in a folder."""
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        os.setuid(65534)
        os._exit(count())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
