"""Without a console a run goes on, and its exit code speaks of the work."""

import os
import pty
import subprocess
import sys

import pytest

from tests.adversarial.commands import evaluate, process, recorded, run
from tests.environments.serve.loopback import running, without_torch


def closed_pipe():
    reading, writing = os.pipe()
    os.close(reading)
    return os.fdopen(writing, "wb")


def full_disk():
    return open("/dev/full", "wb")  # noqa: PTH123


@pytest.mark.parametrize("console", [closed_pipe, full_disk])
@pytest.mark.parametrize("command", [process, evaluate])
def test_a_run_whose_output_cannot_be_written_does_its_work(tmp_path, console, command):
    with console() as gone:
        assert run(command("Plain", tmp_path), stdout=gone, stderr=gone).returncode == 0
    if command is process:
        assert recorded(tmp_path) == 6
    else:
        assert (tmp_path / "evaluation" / "metrics.json").is_file()


def test_a_run_that_fails_without_a_console_still_exits_with_1(tmp_path):
    with closed_pipe() as gone:
        assert run(process("Broken", tmp_path), stdout=gone, stderr=gone).returncode == 1


def test_a_run_started_without_standard_streams_writes_its_record_alone(tmp_path):
    command = " ".join(process("Plain", tmp_path))
    assert run(["sh", "-c", f"{command} <&- >&- 2>&-"]).returncode == 0
    assert recorded(tmp_path) == 6
    assert all(line.startswith("{") for line in (tmp_path / "record.jsonl").read_text().splitlines())


def test_a_closed_terminal_ends_no_run(tmp_path):
    ours, theirs = pty.openpty()
    # In a session of its own with the terminal as its own, so that closing it is a hangup.
    program = "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(1, termios.TIOCSCTTY, 0); "
    program += "os.execv(sys.argv[1], sys.argv[1:])"
    command = [sys.executable, "-c", program, *process("Plain", tmp_path, "--env.total_steps", "200")]
    with running(command, stdin=theirs, stdout=theirs, stderr=theirs) as ended:
        os.close(theirs)
        while b"reward of" not in os.read(ours, 4096):
            pass
        os.close(ours)
        assert ended.wait(250) == 0
    assert recorded(tmp_path) == 200


def test_text_that_the_console_cannot_encode_ends_no_run(tmp_path):
    environment = {**without_torch(), "PYTHONIOENCODING": "ascii"}
    ended = subprocess.run(
        process("Broken", tmp_path), env=environment, capture_output=True, timeout=280, check=False
    )
    assert ended.returncode == 1
    assert b"failed alike" in ended.stdout
