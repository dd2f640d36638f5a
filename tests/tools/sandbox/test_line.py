"""Short commands that the host runs in the sandbox's shell itself, and what the supervisor takes over."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.tools.sandbox.conftest import SMALL, lend
from tools.errors import SandboxUnavailable
from tools.sandbox.checks import hosts
from tools.sandbox.checks.bench import host_pids, marker, until
from tools.sandbox.inside import frames
from tools.sandbox.local import open_local
from tools.sandbox.processes import children

_IN_STATUS_PIPE = "while :; do for fd in {{10..19}}; do echo {words} >&$fd; done; done 2>/dev/null"
"""While bash runs a command, the pipe is under some number that is not told."""


@pytest.fixture
def supervisor(lent):
    """The process of the sandbox's supervisor, which is stopped, and goes on afterwards."""
    (pid,) = [pid for pid in hosts.descendants(os.getpid()) if _runs_shell(pid)]
    os.kill(pid, signal.SIGSTOP)
    yield pid
    os.kill(pid, signal.SIGCONT)


def _runs_shell(pid):
    return any(_name(child) == "bash" for child in children(pid))


def _name(pid):
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except FileNotFoundError:
        return ""


@pytest.mark.usefixtures("supervisor")
async def test_a_short_command_needs_nobody_between(lent):
    result = await lent.shell("echo out; echo err >&2; (exit 7)")
    assert (result.exit_code, result.stdout, result.stderr) == (7, b"out\n", b"err\n")


async def test_a_command_that_takes_longer_than_a_moment_is_taken_over(lent):
    result = await lent.shell("echo first; sleep 0.1; echo last; (exit 3)")
    assert (result.exit_code, result.stdout) == (3, b"first\nlast\n")
    assert result.duration_s > 0.1


async def test_more_output_than_a_pipe_holds_arrives_whole(lent):
    result = await lent.shell("head -c 300000 /dev/zero | tr '\\0' x; echo end >&2", max_output_bytes=400_000)
    assert (result.stdout_total, result.stdout, result.stderr) == (300_000, b"x" * 300_000, b"end\n")


async def test_a_time_limit_counts_from_the_start_and_not_from_the_take_over(lent):
    result = await lent.shell("sleep 1000", timeout_s=0.2)
    assert result.timed_out
    assert 0.2 <= result.duration_s < 10


async def test_a_limit_shorter_than_a_moment_holds(lent):
    assert (await lent.shell("sleep 1000", timeout_s=0.003)).timed_out


@pytest.mark.parametrize("waits", range(4))
async def test_a_command_cancelled_within_a_moment_is_killed(lent, waits):
    running = asyncio.create_task(lent.shell("sleep 4711"))
    for _ in range(waits):
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait({running})
    assert running.cancelled()
    assert (await lent.shell("pgrep -c -x sleep")).stdout == b"0\n"


async def test_what_started_between_two_commands_outlives_the_time_limit_of_the_second(lent):
    mark = marker()
    await lent.shell(f"(sleep 0.3; setsid sleep {mark} &) & true")
    await lend(lent)
    assert await until(lambda: bool(host_pids(mark)), within_s=20)
    born = time.clock_gettime(time.CLOCK_BOOTTIME)
    # Their ages are told in hundredths of a second.
    assert await until(lambda: time.clock_gettime(time.CLOCK_BOOTTIME) > born + 0.02, within_s=20)
    assert (await lent.shell("sleep 1000", timeout_s=0.3)).timed_out
    assert host_pids(mark)


async def test_what_a_request_left_just_before_outlives_the_time_limit(lent):
    mark = marker()
    await lent.exec(f"setsid sleep {mark} &")
    await lend(lent)
    assert (await lent.shell("sleep 1000", timeout_s=0.1)).timed_out
    assert await until(lambda: bool(host_pids(mark)), within_s=20)


async def test_a_background_job_of_a_short_command_can_write_on(lent):
    await lent.shell("mkfifo go; (cat go; echo late; echo done > flag) & true")
    await lent.shell("echo > go; wait")
    assert (await lent.shell("cat flag; echo mine")).stdout == b"done\nmine\n"


async def test_memory_kills_between_two_commands_belong_to_neither(lent):
    hog = "x=$(head -c 400000000 /dev/zero | tr '\\0' a)"
    assert (await lent.exec(["bash", "-c", hog], timeout_s=60)).oom_killed
    await lend(lent)
    assert not (await lent.shell("true")).oom_killed


@pytest.mark.usefixtures("supervisor")
async def test_a_memory_kill_during_a_short_command_is_seen_by_the_host(lent, monkeypatch):
    monkeypatch.setattr("tools.sandbox.line._MOMENT_S", 60.0)
    result = await lent.shell("(x=$(head -c 400000000 /dev/zero | tr '\\0' a))", timeout_s=100)
    assert (result.oom_killed, result.timed_out) == (True, False)


async def test_a_command_to_take_over_that_was_never_begun_is_the_shells_failure(sandbox):
    seconds, cap, begun, oom, seen = b"1000000", b"100", b"1", b"0", b""
    frame = frames.pack(frames.TAKE, seconds, cap, begun, oom, seen)
    _, (code, _, _, _, _, _, words) = await sandbox._channel.request(frame, 1.0)
    assert (code, words) == (b"126", b"cannot start: Input/output error\n")
    assert (await sandbox.shell("echo on")).stdout == b"on\n"


async def test_a_status_pipe_that_is_flooded_does_not_hide_the_status(lent):
    await lent.shell(f"({_IN_STATUS_PIPE.format(words='0123456789abcdef 0')}) & true")
    for code in (3, 0, 5):
        await lend(lent)
        assert (await lent.shell(f"(exit {code})", timeout_s=20)).exit_code == code


async def test_a_status_that_came_with_other_words_is_found(lent):
    command = "for fd in {10..19}; do echo junk >&$fd; done 2>/dev/null; (exit 3)"
    running = asyncio.create_task(lent.shell(command, timeout_s=5))
    await asyncio.sleep(0)
    # The host is busy, and reads both at once.
    time.sleep(0.1)  # noqa: ASYNC251
    assert (await running).exit_code == 3


async def test_a_status_with_a_long_number_is_none(lent):
    # The word that nobody else knows is in the shell's input, which the command can find.
    forge = """for fd in {10..19}; do
      if read -r -t 1 -u $fd line; then
        set -- $line
        for to in {10..19}; do echo $3 $(head -c 5000 /dev/zero | tr '\\0' 1) >&$to; done
      fi
    done 2>/dev/null"""
    assert (await lent.shell(forge, timeout_s=2)).timed_out
    assert (await lent.shell("echo on")).stdout == b"on\n"


async def test_a_status_that_comes_after_the_time_limit_is_none(lent):
    running = asyncio.create_task(lent.shell("sleep 0.1; echo late", timeout_s=0.05))
    await asyncio.sleep(0)
    # The host is busy until the command is over.
    time.sleep(0.5)  # noqa: ASYNC251
    assert (await running).timed_out
    assert (await lent.shell("echo on")).stdout == b"on\n"


async def test_a_host_that_fails_to_read_does_not_mix_up_commands(lent, monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr("tools.sandbox.line.result", lambda *_: [][0])
        with pytest.raises(IndexError):
            await lent.shell("echo first")
    assert (await lent.shell("echo second")).stdout == b"second\n"
    await lend(lent)


@pytest.mark.parametrize("how", ["close", "kill"])
async def test_a_sandbox_that_ends_while_a_short_command_runs_is_unavailable(tier, how):
    async with open_local(SMALL, tier=tier) as sandbox:
        await lend(sandbox)
        (supervisor,) = [pid for pid in hosts.descendants(os.getpid()) if _runs_shell(pid)]
        running = asyncio.create_task(sandbox.shell("sleep 1000"))
        await asyncio.sleep(0)
        if how == "kill":
            os.kill(supervisor, signal.SIGKILL)
        else:
            sandbox._channel.close("the sandbox is closed")
        with pytest.raises(SandboxUnavailable):
            await running
        with pytest.raises(SandboxUnavailable):
            await sandbox.shell("true")


async def test_a_long_command_goes_by_the_supervisor(lent):
    text = "x" * 200_000
    assert (await lent.shell(f"echo {text} | wc -c")).stdout == b"200001\n"
    await lend(lent)


async def test_commands_without_output_files_leave_the_supervisor_no_descriptor(lent):
    (supervisor,) = [pid for pid in hosts.descendants(os.getpid()) if _runs_shell(pid)]
    # What bash is not to run, it opens nothing for.
    await lent.shell("shopt -s extdebug; trap '[[ $BASH_COMMAND != source* ]]' DEBUG")
    await lend(lent)
    before = sum(1 for _ in Path(f"/proc/{supervisor}/fd").iterdir())
    for _ in range(20):
        await lent.shell("true")
        assert await until(lambda: lent._channel.line.lent, within_s=20)
    assert sum(1 for _ in Path(f"/proc/{supervisor}/fd").iterdir()) <= before


async def test_many_commands_leave_no_descriptor(lent):
    async def some(count):
        for _ in range(count):
            await lent.shell("true")
            await lend(lent)
        return sum(1 for _ in Path("/proc/self/fd").iterdir())

    before = await some(5)
    assert await some(50) <= before


async def test_commands_at_the_same_time_come_one_after_the_other(lent):
    results = await asyncio.gather(*(lent.shell(f"echo {number}") for number in range(20)))
    assert [result.text() for result in results] == [f"{number}\n" for number in range(20)]


_SCARCE = """
import asyncio, os, resource
from tools.sandbox import open_sandbox
def held():
    return set(map(int, os.listdir("/proc/self/fd")))
async def main():
    async with open_sandbox("local") as sandbox:
        before = held()
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(before) + ROOM, 4096))
        print([(await sandbox.shell(f"echo {number}")).stdout for number in range(3)])
        await sandbox.exec("true")
        print(len(held()) <= len(before))
asyncio.run(main())
"""


@pytest.mark.parametrize("room", [1, 2, 4, 8, 16])
def test_a_host_with_few_descriptors_keeps_them_and_goes_the_other_way(room):
    program = _SCARCE.replace("ROOM", str(room))
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.stdout == "[b'0\\n', b'1\\n', b'2\\n']\nTrue\n", ran.stderr
