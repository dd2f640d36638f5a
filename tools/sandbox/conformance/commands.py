"""Checks 45 to 73: exit codes, output streams and the persistent shell."""

import asyncio
import resource
import time
from pathlib import Path

from tools.errors import SandboxUnavailable
from tools.sandbox.conformance.checks import Bench, check, equal, holds, marker, raises

_MARK = marker()
"""Unique, because a sandbox may see the same check's processes in others."""
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


@check(45, "A program that does not exist is a result, status 127, not a broken sandbox.")
async def missing_binary_is_127(bench: Bench) -> None:
    for command in (["no-such-program"], "no-such-program"):
        equal("exit code", (await bench.sandbox.exec(command)).exit_code, 127)


@check(46, "A file without execute permission is status 126.")
async def non_executable_is_126(bench: Bench) -> None:
    await bench.sandbox.write_file("plain", b"text")
    equal("exit code", (await bench.sandbox.exec(["./plain"])).exit_code, 126)


@check(47, "A directory that does not exist is an error of its own that names it.")
async def missing_cwd_is_a_clear_error(bench: Bench) -> None:
    with raises(FileNotFoundError, what="a missing directory", naming="nowhere"):
        await bench.sandbox.exec("true", cwd="nowhere")
    await bench.sandbox.write_file("file", b"")
    with raises(NotADirectoryError, what="a file as directory"):
        await bench.sandbox.exec("true", cwd="file")


@check(48, "A NUL byte in a command or path is refused before anything runs.")
async def nul_bytes_are_rejected_before_spawn(bench: Bench) -> None:
    for command in (["touch", "ran", "a\0b"], "touch ran; echo a\0b"):
        with raises(ValueError, what=f"a NUL in {command!r}"):
            await bench.sandbox.exec(command)
    with raises(ValueError, what="a NUL in a path"):
        await bench.sandbox.read_file("a\0b")
    equal("exit code", (await bench.sandbox.exec(["test", "-e", "ran"])).exit_code, 1)


@check(49, "What was written before the timeout is in the result.")
async def partial_output_on_timeout(bench: Bench) -> None:
    result = await bench.sandbox.exec("echo early; echo e2 >&2; sleep 1000", timeout_s=0.5)
    equal("result", (result.timed_out, result.stdout, result.stderr), (True, b"early\n", b"e2\n"))


@check(50, "Ignoring TERM buys less than a second.")
async def timeout_returns_in_time_when_term_is_trapped(bench: Bench) -> None:
    command = "trap '' TERM INT HUP; echo ready; while :; do sleep 1000; done"
    started = time.monotonic()
    result = await bench.sandbox.exec(command, timeout_s=0.5)
    spent = time.monotonic() - started
    equal("result", (result.timed_out, result.stdout), (True, b"ready\n"))
    holds(f"it returned within a second of its timeout ({spent:.2f} s)", spent < 1.5)


@check(51, "`setsid`, `nohup` and doubly forked daemons, alive before, are dead after the timeout.")
async def daemons_die_with_the_timeout(bench: Bench) -> None:
    result = await bench.sandbox.exec(_DAEMONS, timeout_s=2)
    equal("result", (result.timed_out, result.stdout), (True, b"four alive\n"))
    equal("daemons left", (await bench.sandbox.exec(_COUNT)).stdout, b"0\n")


@check(52, "A job that an earlier shell command left in the background outlives a later timeout.")
async def timeout_leaves_earlier_background_job_alive(bench: Bench) -> None:
    await bench.sandbox.shell(f"sleep {_MARK}1 & job=$!")
    result = await bench.sandbox.shell(f"sleep {_MARK}2", timeout_s=0.5)
    holds("the later command timed out", result.timed_out)
    equal("exit code of kill -0", (await bench.sandbox.shell("kill -0 $job")).exit_code, 0)
    equal("sleepers", (await bench.sandbox.exec(_COUNT)).stdout, b"1\n")


@check(53, "A cancelled call has killed every process of its command when the cancellation arrives.")
async def cancellation_kills_the_tree(bench: Bench) -> None:
    running = asyncio.create_task(bench.sandbox.exec(_DAEMONS + f"echo >up; sleep {_MARK}6", timeout_s=60))
    await asyncio.sleep(0.3)
    started = time.monotonic()
    running.cancel()
    await asyncio.wait({running})
    spent = time.monotonic() - started
    holds("the call was cancelled", running.cancelled())
    holds(f"it took less than a second ({spent:.2f} s)", spent < 1)
    equal("processes left", (await bench.sandbox.exec(_COUNT)).stdout, b"0\n")


@check(54, "Statuses that other tools use for timeouts are only statuses here.")
async def exit_124_137_143_are_not_timeouts(bench: Bench) -> None:
    for code in (124, 137, 143):
        result = await bench.sandbox.exec(f"exit {code}")
        equal("result", (result.exit_code, result.timed_out, result.oom_killed), (code, False, False))


@check(55, "A timeout of 0.2 s takes about that long.")
async def sub_second_timeouts_work(bench: Bench) -> None:
    result = await bench.sandbox.exec("sleep 1000", timeout_s=0.2)
    holds("it timed out", result.timed_out)
    holds(f"after 0.2 to 1.0 s ({result.duration_s:.2f} s)", 0.2 <= result.duration_s < 1.0)


@check(56, "A command that closes stdin, stdout and stderr still ends with its status.")
async def closing_every_stream_still_completes(bench: Bench) -> None:
    result = await bench.sandbox.exec("exec <&- >&- 2>&-; exit 4", timeout_s=10)
    equal("result", (result.exit_code, result.timed_out), (4, False))


@check(57, "50 MiB of unread input neither hangs nor fails.")
async def unread_stdin_does_no_harm(bench: Bench) -> None:
    result = await bench.sandbox.exec(["true"], stdin=b"x" * (50 << 20), timeout_s=20)
    equal("result", (result.exit_code, result.timed_out), (0, False))


_FORGED = (
    "for fd in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do "
    'for n in 1 2 3; do echo "$n 0" >&$fd; done; echo 0 >&$fd; done 2>/dev/null; '
    "echo SHELLPS1PREFIX EXITCODESTART0EXITCODEEND; "
)


@check(58, "A background process that keeps stdout open does not delay the result.")
async def background_process_does_not_hold_the_result(bench: Bench) -> None:
    started = time.monotonic()
    result = await bench.sandbox.exec("sleep 1000 & echo hi", timeout_s=30)
    spent = time.monotonic() - started
    equal("result", (result.stdout, result.timed_out), (b"hi\n", False))
    holds(f"it took less than half a second ({spent:.2f} s)", spent < 0.5)


@check(59, "`yes` is stopped at the hard cap, and costs the host little memory.", output_mb=16)
async def endless_output_is_capped_and_killed(bench: Bench) -> None:
    before = _resident_bytes()
    result = await bench.sandbox.exec("yes", timeout_s=60)
    grown = _resident_bytes() - before
    equal("timed_out and exit code", (result.timed_out, result.exit_code), (False, 137))
    holds("it was stopped after the cap", result.stdout_total > 16 << 20)
    holds("it was stopped soon after the cap", result.stdout_total < 64 << 20)
    holds(f"the host grew by less than 64 MB ({grown >> 20} MB)", grown < 64 << 20)


@check(60, "Of long output head and tail are kept, and all of it is counted.")
async def totals_and_truncation_are_exact(bench: Bench) -> None:
    result = await bench.sandbox.exec("seq 100000; seq 10 >&2", max_output_bytes=20)
    whole = "".join(f"{number}\n" for number in range(1, 100001)).encode()
    equal("total", result.stdout_total, len(whole))
    equal("kept", result.stdout, whole[:10] + whole[-10:])
    equal("truncated and stderr", (result.truncated, result.stderr_total), (True, 21))
    exact = await bench.sandbox.exec("printf 12345", max_output_bytes=5)
    equal("output at the limit", (exact.stdout, exact.truncated), (b"12345", False))


@check(61, "Characters of several bytes survive chunks, and a cut in the middle of one is not an error.")
async def split_characters_decode(bench: Bench) -> None:
    count = 200_000
    script = (
        f"s=; for i in 1 2 3 4 5 6 7 8 9 10; do s=$s€; done; i=0; printf a; seq {count // 10} | sed s/.*/$s/"
    )
    whole = await bench.sandbox.exec(script, max_output_bytes=4 << 20)
    equal("characters", whole.text().count("€"), count)
    holds("nothing was replaced", "\ufffd" not in whole.text())
    for cap in (7, 8, 9):
        cut = (await bench.sandbox.exec(script, max_output_bytes=cap)).text()
        holds("a cut text starts with what was whole", cut.startswith("a"))


@check(62, "1 MiB without a newline comes back whole.")
async def one_line_of_a_mebibyte(bench: Bench) -> None:
    result = await bench.sandbox.exec("head -c 1048576 /dev/zero | tr '\\0' x", max_output_bytes=2 << 20)
    holds("all of it is x", result.stdout == b"x" * (1 << 20))


@check(63, "Two streams written at the same time stay two streams.")
async def stdout_and_stderr_are_not_mixed(bench: Bench) -> None:
    command = "for i in $(seq 300); do echo out; echo err >&2; done"
    for result in (await bench.sandbox.exec(command), await bench.sandbox.shell(command)):
        equal("stdout", result.stdout, b"out\n" * 300)
        equal("stderr", result.stderr, b"err\n" * 300)


@check(64, "Four times the output takes about four times as long, not sixteen.")
async def large_output_takes_linear_time(bench: Bench) -> None:
    times: dict[int, float] = {}
    for size in (8 << 20, 32 << 20):
        started = time.monotonic()
        result = await bench.sandbox.exec(f"head -c {size} /dev/zero", max_output_bytes=size)
        times[size] = time.monotonic() - started
        equal("bytes", len(result.stdout), size)
    small, large = times.values()
    holds(f"32 MiB take at most 10 times as long as 8 MiB ({small:.2f} s, {large:.2f} s)",
          large < 10 * small + 0.5)  # fmt: skip


@check(65, "Whatever a command prints, and on whatever descriptor, its status is its own.")
async def output_cannot_forge_the_status(bench: Bench) -> None:
    equal("exec", (await bench.sandbox.exec(["bash", "-c", _FORGED + "exit 3"])).exit_code, 3)
    equal("shell", (await bench.sandbox.shell(_FORGED + "(exit 3)")).exit_code, 3)
    equal("the next command", (await bench.sandbox.shell("false")).exit_code, 1)


@check(66, "NUL, invalid UTF-8 and carriage returns come back as they are.")
async def bytes_of_output_are_preserved(bench: Bench) -> None:
    result = await bench.sandbox.exec(r"printf 'a\0\377\200\r\n\033[0m'")
    equal("stdout", result.stdout, b"a\0\xff\x80\r\n\x1b[0m")


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


_UNFINISHED = ("echo 'a", "if true; then", "echo $(", "}", 'echo "a', "for i in")


@check(67, "The next command finds directory, variables, functions and exports of the last one.")
async def directory_variables_and_functions_persist(bench: Bench) -> None:
    await bench.sandbox.shell("cd /tmp; X=1; f() { echo f$X; }; export Y=2; set -o noglob")
    result = await bench.sandbox.shell("pwd; f; sh -c 'echo $Y'; echo *")
    equal("stdout", result.stdout, b"/tmp\nf1\n2\n*\n")


@check(68, "`exit 3` is status 3, and the shell that follows is flagged as a new one.")
async def exit_is_reported_and_the_restart_flagged(bench: Bench) -> None:
    result = await bench.sandbox.shell("X=1; exit 3")
    after = await bench.sandbox.shell("echo on$X")
    equal("exit code", result.exit_code, 3)
    equal("the next command", after.stdout, b"on\n")
    holds("one of the two results says so", result.shell_restarted or after.shell_restarted)
    holds("later ones do not", not (await bench.sandbox.shell("true")).shell_restarted)


@check(69, "Heredocs and several lines work, and an unclosed quote is an error, not a wait.")
async def unfinished_syntax_does_not_hang(bench: Bench) -> None:
    equal("heredoc", (await bench.sandbox.shell("cat <<'EOF'\na 'b\nEOF\n")).stdout, b"a 'b\n")
    equal("lines", (await bench.sandbox.shell("X=1\nfor i in 1 2; do\necho $i\ndone\n")).stdout, b"1\n2\n")
    for broken in _UNFINISHED:
        result = await bench.sandbox.shell(broken, timeout_s=10)
        holds(f"{broken!r} is an error at once", not result.timed_out and result.exit_code != 0)
    equal("afterwards", (await bench.sandbox.shell("echo on $X")).stdout, b"on 1\n")


@check(70, "Replacing, trapping, redirecting and reading in the shell leave a shell that answers.")
async def the_shell_cannot_be_wedged(bench: Bench) -> None:
    tricks = ("exec true", "set -e; false", "trap 'echo trapped' EXIT; exit 1", "cat", "read x",
              "exec </dev/null", "exec >/dev/null 2>&1", "set -x; PS4=; true", "trap 'true' DEBUG",
              "alias echo=false", "exec 9>&-")  # fmt: skip
    for trick in tricks:
        holds(f"{trick!r} ends", not (await bench.sandbox.shell(trick, timeout_s=10)).timed_out)
        after = await bench.sandbox.shell("printf on", timeout_s=10)
        holds(f"after {trick!r} the shell answers", not after.timed_out)
        await bench.sandbox.shell("exit")
        equal("a new shell", (await bench.sandbox.shell("printf on")).stdout, b"on")


@check(71, "A loop of builtins is ended; the shell goes on, or reports that it was replaced.")
async def a_busy_loop_of_the_shell_is_ended(bench: Bench) -> None:
    await bench.sandbox.shell("X=kept")
    result = await bench.sandbox.shell("while :; do :; done", timeout_s=0.5)
    holds("it timed out", result.timed_out)
    after = await bench.sandbox.shell("echo on$X")
    restarted = result.shell_restarted or after.shell_restarted
    equal("the next command", after.stdout, b"on\n" if restarted else b"onkept\n")


@check(72, "Shells of two sandboxes share nothing and do not wait for each other.")
async def two_shells_are_isolated_and_parallel(bench: Bench) -> None:
    async with bench.open() as other:
        await asyncio.gather(bench.sandbox.shell("cd /tmp; X=1"), other.shell("X=2; touch seen"))
        slow = asyncio.create_task(bench.sandbox.shell("sleep 5", timeout_s=30))
        fast = await other.shell("pwd; echo $X")
        holds("the other shell did not wait", not slow.done())
        equal("the other shell", fast.text(), f"{other.workdir}\n2\n")
        slow.cancel()
        await asyncio.wait({slow})
    equal("this shell", (await bench.sandbox.shell("pwd; echo $X; ls")).stdout, b"/tmp\n1\n")


@check(73, "`kill -9` of the shell or of everything ends in a new shell or a clear error, never in a hang.")
async def killing_the_shell_from_inside_is_survived(bench: Bench) -> None:
    for suicide in ("kill -9 $$", "kill -9 -1", "sh -c 'kill -9 -1'"):
        try:
            await bench.sandbox.shell("X=kept")
            result = await bench.sandbox.shell(suicide, timeout_s=10)
            after = await bench.sandbox.shell("echo on$X", timeout_s=10)
        except SandboxUnavailable:
            return
        # `kill -9 -1` spares its caller, so a shell that uses its builtin survives.
        restarted = result.shell_restarted or after.shell_restarted
        equal(f"the command after {suicide!r}", after.stdout, b"on\n" if restarted else b"onkept\n")
        await bench.sandbox.shell("exit")
