"""Checks 74 to 82: what code may use is bounded, and the sandbox outlives the attempt to take more."""

import asyncio
import errno

from tools.sandbox.conformance.bench import COUNT_PROCESSES, Bench, MissingError
from tools.sandbox.conformance.checks import check, equal, holds, raises

_BOMB = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass\n"
_FORKS = """
import os, signal
n = 0
while True:
    try:
        if os.fork() == 0: signal.pause()
    except OSError: break
    n += 1
print(n)
"""
_MANY = """
import os, sys
n = 0
try:
    while n < {count}:
        with open(f"flood/{{n}}", "wb") as file:
            file.write(b"x" * {size})
        n += 1
except OSError as error:
    print(error.errno, end=" ")
print(n)
"""


@check(74, needs=("pids",), pids=48)
async def fork_bomb_stays_below_the_limit(bench: Bench) -> None:
    """A fork bomb gets no more processes than allowed, and the sandbox is usable afterwards."""
    children = int((await bench.python(_FORKS, timeout_s=20)).text())
    holds(f"it got 10 to 64 processes ({children})", 10 <= children <= 64)
    await bench.sandbox.exec("kill -9 -1")
    bomb = await bench.python(_BOMB, timeout_s=1)
    holds("the bomb was ended by its timeout", bomb.timed_out or bomb.exit_code != 0)
    left = int((await bench.sandbox.exec(COUNT_PROCESSES)).text())
    holds(f"none of it is left ({left} processes)", left < 10)


@check(75, needs=("pids",), pids=48)
async def fork_bomb_in_one_does_not_stop_another(bench: Bench) -> None:
    """While a bomb goes off in one sandbox, another one starts processes."""
    async with bench.open() as other:
        bomb = asyncio.create_task(bench.python(_BOMB, timeout_s=2))
        await asyncio.sleep(0.5)
        result = await other.exec(
            "for i in 1 2 3 4 5 6 7 8; do (true) || exit 1; done; echo on", timeout_s=30
        )
        holds("the bomb was still going off", not bomb.done())
        equal("the other sandbox", result.stdout, b"on\n")
        await bomb


@check(76, needs=("memory_mb",), memory_mb=192, disk_mb=48)
async def memory_hog_is_killed_and_named(bench: Bench) -> None:
    """Too much memory ends the process and sets `oom_killed`, for a grandchild too."""
    hog = "python3 -c 'x = bytearray(1 << 30)'"
    if (await bench.sandbox.exec("python3 -c pass")).exit_code == 127:
        raise MissingError("there is no python3 in the sandbox")
    for command in (hog, f'sh -c "{hog}; exit \\$?"; exit $?'):
        result = await bench.sandbox.exec(command, timeout_s=30)
        equal("exit code and oom_killed", (result.exit_code, result.oom_killed), (137, True))
    holds("the next command is not blamed", not (await bench.sandbox.exec("true")).oom_killed)


@check(77, gives=("disk_mb",), memory_mb=192, disk_mb=48, file_mb=96)
async def full_workspace_is_enospc(bench: Bench) -> None:
    """A full workspace is "no space left", not the death of whoever writes."""
    result = await bench.sandbox.exec("head -c 60000000 /dev/zero >big")
    holds("the writer was not killed", result.exit_code == 1 and not result.oom_killed)
    holds("it was told why", b"No space left" in result.stderr)


@check(78, memory_mb=192, disk_mb=48, file_mb=16)
async def too_many_bytes_are_stopped(bench: Bench) -> None:
    """Neither one file of a gigabyte nor many smaller ones fit."""
    await bench.sandbox.exec("head -c 1000000000 /dev/zero >one", timeout_s=30)
    one = int((await bench.sandbox.exec("stat -c %s one")).text())
    holds(f"one file got at most 48 MB ({one >> 20} MB)", one <= 48 << 20)
    if not bench.gives("disk_mb"):
        return
    await bench.sandbox.exec("rm one; for i in $(seq 100); do head -c 1000000 /dev/zero >$i || exit 1; done")
    used = int((await bench.sandbox.exec("du -sk . | cut -f1")).text())
    holds(f"all files got 30 to 49 MB ({used >> 10} MB)", 30 << 10 <= used <= 49 << 10)


@check(79, needs=("memory_mb",), memory_mb=96, disk_mb=24)
async def inode_flood_is_bounded(bench: Bench) -> None:
    """Empty files without end are stopped, and the sandbox answers afterwards."""
    await bench.sandbox.exec("mkdir flood")
    result = await bench.python(_MANY.format(count=2_000_000, size=0), timeout_s=60)
    said = result.text().split()
    stopped = result.exit_code == 137 or (len(said) == 2 and int(said[0]) == errno.ENOSPC)
    holds(f"it was told that there is no space, or killed ({result.exit_code}, {said})", stopped)
    equal("afterwards", (await bench.sandbox.exec("echo on")).stdout, b"on\n")


@check(80, needs=("cpus",), cpus=0.25)
async def cpu_quota_is_honoured(bench: Bench) -> None:
    """Two busy loops of 2 s on a quarter of a core get about half a second together."""
    script = "for i in 1 2; do timeout 2 sh -c 'while :; do :; done' & done; wait; times"
    text = (await bench.sandbox.exec(script, timeout_s=60)).text()
    minutes = [part.rstrip("s").split("m") for part in text.split()[2:]]
    used = sum(60 * int(minute) + float(second) for minute, second in minutes)
    holds(f"they used 0.1 to 1.0 s ({used:.2f} s)", 0.1 < used < 1.0)


@check(81)
async def no_core_is_dumped(bench: Bench) -> None:
    """A crash leaves no core file."""
    result = await bench.sandbox.exec("ulimit -c; sh -c 'kill -SEGV $$'; echo $?; ls -A")
    equal("limit, status and files", result.stdout.split(), [b"0", b"139"])


@check(82)
async def a_sparse_giant_is_refused_by_its_size(bench: Bench) -> None:
    """A file that claims 5 GB cannot be made, or is refused without being read."""
    await bench.sandbox.exec("truncate -s 5G giant || truncate -s 100M giant")
    size = int((await bench.sandbox.exec("stat -c %s giant")).text())
    holds(f"the file is larger than a read may be ({size >> 20} MB)", size > 10 << 20)
    with raises(OSError, what="reading it"):
        await asyncio.wait_for(bench.sandbox.read_file("giant"), 5)
