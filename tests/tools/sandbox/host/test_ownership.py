"""Programs behind guards run as without one, and folders of agents are removed, however they were left."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tables import cases
from tools.sandbox.host.ownership import guard_command, remove_folder


def run(*argv, **options):
    options = {"env": {"PATH": "/usr/bin:/bin"}, "capture_output": True, "text": True} | options
    return subprocess.run(guard_command(argv), timeout=280, check=False, start_new_session=True, **options)


@cases("script, code", [("exit 3", 3), ("kill -KILL $$", 137), ("kill -SEGV $$", 139), ("exit 0", 0)])
def test_its_exit_code_is_that_of_the_program_or_128_and_its_signal(script, code):
    assert run("sh", "-c", script).returncode == code


def test_who_reads_the_output_sees_its_end_while_the_program_goes_on():
    program = "import os, sys, time; os.close(1); os.close(2); time.sleep(600)"
    process = subprocess.Popen(guard_command([sys.executable, "-c", program]), stdout=subprocess.PIPE)
    assert process.stdout.read() == b""
    process.terminate()
    assert process.wait() == 137


def test_the_program_has_the_variables_that_were_given_and_no_other():
    assert run("env").stdout == "PATH=/usr/bin:/bin\n"


def test_signals_that_python_ignores_have_their_usual_effect():
    assert run("sh", "-c", "kill -PIPE $$").returncode == 141


def test_a_program_that_cannot_be_started_is_named():
    done = run("/nothing")
    assert (done.returncode, done.stderr[:30]) == (127, "/nothing cannot be started: [E")


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
    remove_folder(str(folder))
    assert not folder.exists()


def test_closed_folders_are_removed(folder):
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "file").write_text("x")
    for path in (folder / "a" / "b", folder / "a", folder):
        path.chmod(0)
    remove_folder(str(folder))
    assert not folder.exists()


def test_nothing_behind_a_link_is_touched(folder, tmp_path):
    (tmp_path / "host").mkdir(mode=0o750)
    (tmp_path / "host" / "file").write_text("kept")
    (folder / "link").symlink_to(tmp_path / "host")
    (folder / "deep").mkdir()
    (folder / "deep" / "link").symlink_to(tmp_path / "host")
    remove_folder(str(folder))
    assert not folder.exists()
    assert (tmp_path / "host" / "file").read_text() == "kept"
    assert (tmp_path / "host").stat().st_mode & 0o777 == 0o750


def test_a_link_in_place_of_the_folder_is_left_alone(folder, tmp_path):
    (folder / "file").write_text("kept")
    (tmp_path / "link").symlink_to(folder)
    remove_folder(str(tmp_path / "link"))
    assert (folder / "file").read_text() == "kept"


def test_pipes_and_odd_names_are_removed(folder):
    os.mkfifo(folder / "pipe")
    (folder / "a\nb").mkdir()
    (folder / "a\nb" / "-rf").write_text("x")
    remove_folder(str(folder))
    assert not folder.exists()


def test_a_folder_that_is_gone_is_no_error(tmp_path):
    remove_folder(str(tmp_path / "none"))


def test_no_descriptor_is_kept(folder):
    (folder / "a" / "b").mkdir(parents=True)
    before = len(list(Path("/proc/self/fd").iterdir()))
    remove_folder(str(folder))
    # What other tests forgot may be closed meanwhile.
    assert len(list(Path("/proc/self/fd").iterdir())) <= before
