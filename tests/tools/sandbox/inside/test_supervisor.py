"""Commands on their own: results, streams, limits of time and output."""

import asyncio
import errno

import pytest

from tools.sandbox.inside.job import Capture


async def test_a_string_runs_through_sh_and_a_sequence_as_argv(sandbox):
    assert (await sandbox.exec("echo $((1 + 1))")).stdout == b"2\n"
    assert (await sandbox.exec(["echo", "$((1 + 1))"])).stdout == b"$((1 + 1))\n"


async def test_a_failed_command_is_a_result(sandbox):
    result = await sandbox.exec("echo out; echo err >&2; exit 7")
    assert (result.exit_code, result.stdout, result.stderr) == (7, b"out\n", b"err\n")


async def test_a_missing_program_is_127(sandbox):
    result = await sandbox.exec(["no-such-program"])
    assert result.exit_code == 127
    assert b"No such file" in result.stderr


async def test_a_program_that_may_not_run_is_126(sandbox):
    await sandbox.write_file("plain", b"text")
    assert (await sandbox.exec(["./plain"])).exit_code == 126


async def test_a_signal_is_128_and_its_number(sandbox):
    assert (await sandbox.exec("kill -SEGV $$")).exit_code == 139


async def test_a_missing_directory_is_an_error_of_its_own(sandbox):
    with pytest.raises(FileNotFoundError):
        await sandbox.exec("true", cwd="nowhere")


async def test_a_workspace_that_the_agent_closed_is_the_command_s_failure(sandbox):
    await sandbox.exec("chmod 0 .")
    assert (await sandbox.exec("true")).exit_code == 126
    with pytest.raises(PermissionError):
        await sandbox.exec("true", cwd=".")


async def test_a_time_limit_of_a_month_is_one(sandbox):
    month_s = 30 * 24 * 3600.0
    assert (await sandbox.exec("sleep 0.05; echo on", timeout_s=month_s)).stdout == b"on\n"
    assert (await sandbox.shell("sleep 0.05; echo on", timeout_s=month_s)).stdout == b"on\n"


async def test_a_nul_byte_is_refused_before_anything_runs(sandbox):
    with pytest.raises(ValueError, match="NUL"):
        await sandbox.exec(["echo", "a\0b"])


async def test_stdin_env_and_cwd_arrive(sandbox):
    result = await sandbox.exec('cat; echo "$X"; pwd', stdin=b"in\n", env={"X": "a=b c"}, cwd="/tmp")
    assert result.stdout == b"in\na=b c\n/tmp\n"


async def test_stdin_that_nobody_reads_does_no_harm(sandbox):
    assert (await sandbox.exec("true", stdin=b"x" * (8 << 20))).exit_code == 0


async def test_much_stdin_arrives_whole(sandbox):
    assert (await sandbox.exec("wc -c", stdin=b"x" * (8 << 20))).stdout == b"8388608\n"


async def test_closing_every_stream_does_not_hang_a_command(sandbox):
    assert (await sandbox.exec("exec <&- >&- 2>&-; exit 4")).exit_code == 4


async def test_output_can_be_opened_by_name(sandbox):
    result = await sandbox.exec("echo a > /dev/stdout; echo b > /dev/stderr")
    assert (result.exit_code, result.stdout, result.stderr) == (0, b"a\n", b"b\n")


async def test_a_broken_pipe_ends_the_writer_quietly(sandbox):
    result = await sandbox.exec("yes | head -n 1")
    assert (result.stdout, result.stderr) == (b"y\n", b"")


async def test_bytes_stay_as_they_are(sandbox):
    assert (await sandbox.exec(r"printf 'a\0\377\r\n'")).stdout == b"a\0\xff\r\n"


async def test_a_background_process_that_holds_stdout_does_not_hold_the_result(sandbox):
    result = await sandbox.exec("sleep 1000 & echo $!", timeout_s=30)
    assert not result.timed_out
    assert (await sandbox.exec(["kill", "-0", result.text().strip()])).exit_code == 0


async def test_a_timeout_is_a_result_with_the_output_so_far(sandbox):
    result = await sandbox.exec("echo early; trap '' TERM; sleep 1000", timeout_s=0.3)
    assert (result.timed_out, result.exit_code, result.stdout) == (True, 137, b"early\n")


async def test_an_exit_status_of_124_or_137_alone_is_no_timeout(sandbox):
    for code in (124, 137):
        result = await sandbox.exec(f"exit {code}")
        assert (result.exit_code, result.timed_out) == (code, False)


async def test_a_timeout_kills_every_process_of_the_command(sandbox):
    daemons = (
        "setsid sleep 1001 & nohup sleep 1002 >/dev/null 2>&1 & (setsid sh -c 'sleep 1003 & sleep 1004' &) ;"
        "python3 -c 'import os,signal,time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if os.fork(): os._exit(0)\n"
        "os.setsid()\n"
        "if os.fork(): os._exit(0)\n"
        "time.sleep(1005)';"
        "while [ $(pgrep -x sleep | wc -l) -lt 4 ]; do :; done; pgrep -x sleep; pgrep -x python3; sleep 1000"
    )
    result = await sandbox.exec(daemons, timeout_s=2)
    assert result.timed_out
    assert len(result.stdout.split()) >= 5
    left = await sandbox.exec("pgrep -x 'sleep|python3' | grep -vx 1")
    assert left.stdout == b""


async def test_a_timeout_leaves_an_earlier_background_process_alive(sandbox):
    await sandbox.exec("setsid sleep 2001 >/dev/null 2>&1 & until pgrep -x sleep >/dev/null; do :; done")
    assert (await sandbox.exec("sleep 2002", timeout_s=0.2)).timed_out
    assert (await sandbox.exec("pgrep -ax sleep")).text().split()[1:] == ["sleep", "2001"]


async def test_cancellation_kills_the_command_and_the_sandbox_goes_on(sandbox):
    running = asyncio.create_task(sandbox.exec("setsid sleep 1000"))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await sandbox.exec("pgrep -x sleep")).stdout == b""


async def test_commands_at_the_same_time_all_get_their_own_result(sandbox):
    results = await asyncio.gather(*(sandbox.exec(["echo", str(n)]) for n in range(32)))
    assert [r.stdout for r in results] == [f"{n}\n".encode() for n in range(32)]


async def test_head_and_tail_of_long_output_are_kept_and_totals_are_exact(sandbox):
    result = await sandbox.exec("seq 100000", max_output_bytes=20)
    assert (result.stdout, result.stdout_total, result.truncated) == (
        b"1\n2\n3\n4\n5\n" + b"999\n100000"[-9:] + b"\n",
        588_895,
        True,
    )


async def test_output_without_end_is_stopped(sandbox):
    result = await sandbox.exec("yes", max_output_bytes=100)
    assert result.exit_code == 137
    assert result.stdout_total > sandbox.record.limits.output_mb << 20
    assert not result.timed_out


async def test_a_fork_bomb_stays_below_its_limit_and_the_sandbox_is_usable_afterwards(sandbox):
    bomb = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass\n"
    assert (await sandbox.exec(["python3", "-c", bomb], timeout_s=0.7)).timed_out
    result = await sandbox.exec("ls /proc | grep -c '^[0-9]'")
    assert int(result.stdout) < 8


async def test_processes_beyond_the_limit_are_refused(sandbox):
    result = await sandbox.exec("for i in $(seq 200); do sleep 1000 & done; wait", timeout_s=1)
    assert b"Resource temporarily unavailable" in result.stderr or b"fork" in result.stderr


async def test_a_full_sandbox_can_still_be_read(sandbox):
    await sandbox.write_file("kept", b"here")
    fill = (
        "import subprocess\ntry:\n  while True: subprocess.Popen(['sleep', '1000'])\nexcept OSError: pass\n"
    )
    await sandbox.exec(["python3", "-c", fill])
    assert await sandbox.read_file("kept") == b"here"


async def test_a_memory_hog_is_killed_and_named(sandbox):
    result = await sandbox.exec("sh -c 'python3 -c \"x = bytearray(1 << 30)\"; exit $?'")
    assert (result.exit_code, result.oom_killed) == (137, True)
    assert (await sandbox.exec("true")).oom_killed is False


async def test_a_full_workspace_is_enospc_and_kills_nobody(sandbox):
    script = "for i in 1 2 3 4 5 6 7 8; do head -c 10000000 /dev/zero > f$i || exit 9; done"
    result = await sandbox.exec(script)
    assert b"No space left" in result.stderr
    assert not result.oom_killed
    with pytest.raises(OSError, match="No space left") as caught:
        await sandbox.write_file("more", b"x" * (4 << 20))
    assert caught.value.errno == errno.ENOSPC


async def test_one_file_has_a_size_limit(sandbox):
    result = await sandbox.exec("head -c 30000000 /dev/zero > big; echo $?; stat -c %s big")
    assert result.stdout.split()[1] == str(16 << 20).encode()


def test_a_capture_without_room_still_counts(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(b"abc")
    with path.open("rb") as file:
        capture = Capture(file.fileno(), 0)
        capture.drain()
    assert (capture.kept(), capture.total) == (b"", 3)


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


async def test_a_program_of_ours_that_never_ends_is_ended_with_its_time(sandbox):
    result = await sandbox.run_python("while True: pass", timeout_s=0.2)
    assert result.timed_out


async def test_a_program_of_ours_leaves_nothing_to_the_next(sandbox):
    await sandbox.run_python("import builtins, os; builtins.left = 1; os.chdir('/')")
    result = await sandbox.run_python("import os; print(os.getcwd()); left")
    assert (result.stdout, result.stderr) == (b"/workspace\n", b"NameError: name 'left' is not defined\n")
