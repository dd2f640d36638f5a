"""Checks 45 to 57: what a command's end means, and that a timeout ends all of it."""

import asyncio
import time

from tools.sandbox.conformance.bench import Bench, marker
from tools.sandbox.conformance.checks import check, equal, holds, raises

_MARK = marker()
"""Where a sandbox sees processes of the whole machine, others may run the same check."""
_COUNT = (
    "for f in /proc/[0-9]*/cmdline; do tr '\\0\\n' '  ' <$f; echo; done 2>/dev/null | "
    f"grep -c '^sleep {_MARK}'"
)
_DAEMONS = f"""
setsid sleep {_MARK}1 &
nohup sleep {_MARK}2 >/dev/null 2>&1 &
(setsid sh -c 'sleep {_MARK}3 & sleep {_MARK}4' &)
until [ "$({_COUNT})" = 4 ]; do sleep 0.01; done
echo four alive
sleep {_MARK}5
"""


@check(45)
async def missing_binary_is_127(bench: Bench) -> None:
    """A program that does not exist is a result, status 127, not a broken sandbox."""
    for command in (["no-such-program"], "no-such-program"):
        equal("exit code", (await bench.sandbox.exec(command)).exit_code, 127)


@check(46)
async def non_executable_is_126(bench: Bench) -> None:
    """A file without execute permission is status 126."""
    await bench.sandbox.write_file("plain", b"text")
    equal("exit code", (await bench.sandbox.exec(["./plain"])).exit_code, 126)


@check(47)
async def missing_cwd_is_a_clear_error(bench: Bench) -> None:
    """A directory that does not exist is an error of its own that names it."""
    try:
        await bench.sandbox.exec("true", cwd="nowhere")
    except FileNotFoundError as error:
        holds("the message names the directory", "nowhere" in str(error))
    else:
        holds("FileNotFoundError was raised", False)
    await bench.sandbox.write_file("file", b"")
    with raises(NotADirectoryError, what="a file as directory"):
        await bench.sandbox.exec("true", cwd="file")


@check(48)
async def nul_bytes_are_rejected_before_spawn(bench: Bench) -> None:
    """A NUL byte in a command or path is refused before anything runs."""
    with raises(ValueError, what="a NUL in a word"):
        await bench.sandbox.exec(["touch", "ran", "a\0b"])
    with raises(ValueError, what="a NUL in a shell command"):
        await bench.sandbox.exec("touch ran; echo a\0b")
    with raises(ValueError, what="a NUL in a path"):
        await bench.sandbox.read_file("a\0b")
    equal("exit code", (await bench.sandbox.exec(["test", "-e", "ran"])).exit_code, 1)


@check(49)
async def partial_output_on_timeout(bench: Bench) -> None:
    """What was written before the timeout is in the result."""
    result = await bench.sandbox.exec("echo early; echo e2 >&2; sleep 1000", timeout_s=0.5)
    equal("result", (result.timed_out, result.stdout, result.stderr), (True, b"early\n", b"e2\n"))


@check(50)
async def timeout_returns_in_time_when_term_is_trapped(bench: Bench) -> None:
    """Ignoring TERM buys less than a second."""
    command = "trap '' TERM INT HUP; echo ready; while :; do sleep 1000; done"
    started = time.monotonic()
    result = await bench.sandbox.exec(command, timeout_s=0.5)
    spent = time.monotonic() - started
    equal("result", (result.timed_out, result.stdout), (True, b"ready\n"))
    holds(f"it returned within a second of its timeout ({spent:.2f} s)", spent < 1.5)


@check(51)
async def daemons_die_with_the_timeout(bench: Bench) -> None:
    """`setsid`, `nohup` and doubly forked daemons, alive before, are dead after the timeout."""
    result = await bench.sandbox.exec(_DAEMONS, timeout_s=2)
    equal("result", (result.timed_out, result.stdout), (True, b"four alive\n"))
    equal("daemons left", (await bench.sandbox.exec(_COUNT)).stdout, b"0\n")


@check(52)
async def timeout_leaves_earlier_background_job_alive(bench: Bench) -> None:
    """A job that an earlier shell command left in the background outlives a later timeout."""
    await bench.sandbox.shell(f"sleep {_MARK}1 & job=$!")
    result = await bench.sandbox.shell(f"sleep {_MARK}2", timeout_s=0.5)
    holds("the later command timed out", result.timed_out)
    equal("exit code of kill -0", (await bench.sandbox.shell("kill -0 $job")).exit_code, 0)
    equal("sleepers", (await bench.sandbox.exec(_COUNT)).stdout, b"1\n")


@check(53)
async def cancellation_kills_the_tree(bench: Bench) -> None:
    """A cancelled call has killed every process of its command when the cancellation arrives."""
    running = asyncio.create_task(bench.sandbox.exec(_DAEMONS + f"echo >up; sleep {_MARK}6", timeout_s=60))
    await asyncio.sleep(0.3)
    started = time.monotonic()
    running.cancel()
    await asyncio.wait({running})
    spent = time.monotonic() - started
    holds("the call was cancelled", running.cancelled())
    holds(f"it took less than a second ({spent:.2f} s)", spent < 1)
    equal("processes left", (await bench.sandbox.exec(_COUNT)).stdout, b"0\n")


@check(54)
async def exit_124_137_143_are_not_timeouts(bench: Bench) -> None:
    """Statuses that other tools use for timeouts are only statuses here."""
    for code in (124, 137, 143):
        result = await bench.sandbox.exec(f"exit {code}")
        equal("result", (result.exit_code, result.timed_out, result.oom_killed), (code, False, False))


@check(55)
async def sub_second_timeouts_work(bench: Bench) -> None:
    """A timeout of 0.2 s takes about that long."""
    result = await bench.sandbox.exec("sleep 1000", timeout_s=0.2)
    holds("it timed out", result.timed_out)
    holds(f"after 0.2 to 1.0 s ({result.duration_s:.2f} s)", 0.2 <= result.duration_s < 1.0)


@check(56)
async def closing_every_stream_still_completes(bench: Bench) -> None:
    """A command that closes stdin, stdout and stderr still ends with its status."""
    result = await bench.sandbox.exec("exec <&- >&- 2>&-; exit 4", timeout_s=10)
    equal("result", (result.exit_code, result.timed_out), (4, False))


@check(57)
async def unread_stdin_does_no_harm(bench: Bench) -> None:
    """50 MiB of input that nobody reads neither hangs nor fails."""
    result = await bench.sandbox.exec(["true"], stdin=b"x" * (50 << 20), timeout_s=20)
    equal("result", (result.exit_code, result.timed_out), (0, False))
