"""Commands on their own: results, streams, limits of time and output."""

import pytest

from tools.sandbox.inside.job import Capture


async def test_a_workspace_that_the_agent_closed_is_the_command_s_failure(sandbox):
    await sandbox.exec("chmod 0 .")
    assert (await sandbox.exec("true")).exit_code == 126
    with pytest.raises(PermissionError):
        await sandbox.exec("true", cwd=".")


async def test_a_time_limit_of_a_month_is_one(sandbox):
    month_s = 30 * 24 * 3600.0
    assert (await sandbox.exec("sleep 0.05; echo on", timeout_s=month_s)).stdout == b"on\n"
    assert (await sandbox.shell("sleep 0.05; echo on", timeout_s=month_s)).stdout == b"on\n"


async def test_output_can_be_opened_by_name(sandbox):
    result = await sandbox.exec("echo a > /dev/stdout; echo b > /dev/stderr")
    assert (result.exit_code, result.stdout, result.stderr) == (0, b"a\n", b"b\n")


async def test_a_broken_pipe_ends_the_writer_quietly(sandbox):
    result = await sandbox.exec("yes | head -n 1")
    assert (result.stdout, result.stderr) == (b"y\n", b"")


def test_a_capture_without_room_still_counts(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(b"abc")
    with path.open("rb") as file:
        capture = Capture(file.fileno(), 0)
        capture.drain()
    assert (capture.output(), capture.total) == (b"", 3)


REPORT = "import os, sys; print(os.getuid(), os.getcwd(), sys.stdin.read(), len(os.listdir('/proc/self/fd')))"


async def test_a_program_of_ours_runs_as_the_agent_with_its_input_and_nothing_else_open(sandbox):
    theirs = await sandbox.exec(["python3", "-I", "-S", "-c", REPORT], stdin=b"input")
    assert (await sandbox.run_python(REPORT, stdin=b"input")).stdout == theirs.stdout


@pytest.mark.parametrize(
    ("source", "exit_code", "stderr"),
    [
        ("import sys; sys.exit(3)", 3, b""),
        ("import sys; sys.exit()", 0, b""),
        ("raise ValueError('no')", 1, b"ValueError: no\n"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137, b""),
    ],
)
async def test_a_program_of_ours_ends_as_one_that_python_started(sandbox, source, exit_code, stderr):
    result = await sandbox.run_python(source)
    assert (result.exit_code, result.stderr) == (exit_code, stderr)


async def test_a_program_of_ours_leaves_nothing_to_the_next(sandbox):
    await sandbox.run_python("import builtins, os; builtins.left = 1; os.chdir('/')")
    result = await sandbox.run_python("import os; print(os.getcwd()); left")
    assert (result.stdout, result.stderr) == (b"/workspace\n", b"NameError: name 'left' is not defined\n")
