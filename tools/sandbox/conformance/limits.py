"""Checks 74 to 82 and 111 to 120: limits, many sandboxes, and the truth of the record."""

import asyncio
import errno
from collections.abc import Awaitable, Callable, Mapping

from tools.errors import ConfigError, IsolationError, SandboxError
from tools.sandbox.base import LimitOverrides, Sandbox
from tools.sandbox.conformance.checks import COUNT_PROCESSES, Bench, MissingError, check, equal, holds, raises

_TIGHT: LimitOverrides = {"memory_mb": 192, "disk_mb": 48, "file_mb": 16, "pids": 40, "output_mb": 4}
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


@check(
    74, "A fork bomb stays below the limit, and the sandbox is usable afterwards.", needs=("pids",), pids=48
)
async def fork_bomb_stays_below_the_limit(bench: Bench) -> None:
    children = int((await bench.python(_FORKS, timeout_s=20)).text())
    holds(f"it got 10 to 64 processes ({children})", 10 <= children <= 64)
    await bench.sandbox.exec("kill -9 -1")
    bomb = await bench.python(_BOMB, timeout_s=1)
    holds("the bomb was ended by its timeout", bomb.timed_out or bomb.exit_code != 0)
    left = int((await bench.sandbox.exec(COUNT_PROCESSES)).text())
    holds(f"none of it is left ({left} processes)", left < 10)


@check(75, "While a bomb goes off in one sandbox, another one starts processes.", needs=("pids",), pids=48)
async def fork_bomb_in_one_does_not_stop_another(bench: Bench) -> None:
    async with bench.open() as other:
        bomb = asyncio.create_task(bench.python(_BOMB, timeout_s=2))
        await asyncio.sleep(0.5)
        result = await other.exec(
            "for i in 1 2 3 4 5 6 7 8; do (true) || exit 1; done; echo on", timeout_s=30
        )
        holds("the bomb was still going off", not bomb.done())
        equal("the other sandbox", result.stdout, b"on\n")
        await bomb


@check(
    76,
    "Too much memory ends the process and sets `oom_killed`, for a grandchild too.",
    needs=("memory_mb",),
    memory_mb=192,
    disk_mb=48,
)
async def memory_hog_is_killed_and_named(bench: Bench) -> None:
    if (await bench.sandbox.exec("python3 -c pass")).exit_code == 127:
        raise MissingError("there is no python3 in the sandbox")
    for command in (_HOG, f'sh -c "{_HOG}; exit \\$?"; exit $?'):
        result = await bench.sandbox.exec(command, timeout_s=30)
        equal("exit code and oom_killed", (result.exit_code, result.oom_killed), (137, True))
    holds("the next command is not blamed", not (await bench.sandbox.exec("true")).oom_killed)


@check(
    77,
    'A full workspace is "no space left", not the death of the writer.',
    gives=("disk_mb",),
    memory_mb=192,
    disk_mb=48,
    file_mb=96,
)
async def full_workspace_is_enospc(bench: Bench) -> None:
    result = await bench.sandbox.exec("head -c 60000000 /dev/zero >big")
    holds("the writer was not killed", result.exit_code == 1 and not result.oom_killed)
    holds("it was told why", b"No space left" in result.stderr)


@check(78, "Neither one file of a gigabyte nor many smaller ones fit.", memory_mb=192, disk_mb=48, file_mb=16)
async def too_many_bytes_are_stopped(bench: Bench) -> None:
    await bench.sandbox.exec("head -c 1000000000 /dev/zero >one", timeout_s=30)
    one = int((await bench.sandbox.exec("stat -c %s one")).text())
    holds(f"one file got at most 48 MB ({one >> 20} MB)", one <= 48 << 20)
    if not bench.gives("disk_mb"):
        return
    await bench.sandbox.exec("rm one; for i in $(seq 100); do head -c 1000000 /dev/zero >$i || exit 1; done")
    used = int((await bench.sandbox.exec("du -sk . | cut -f1")).text())
    holds(f"all files got 30 to 49 MB ({used >> 10} MB)", 30 << 10 <= used <= 49 << 10)


@check(
    79,
    "Empty files without end are stopped, and the sandbox answers afterwards.",
    needs=("memory_mb",),
    memory_mb=96,
    disk_mb=24,
)
async def inode_flood_is_bounded(bench: Bench) -> None:
    await bench.sandbox.exec("mkdir flood")
    result = await bench.python(_MANY.format(count=2_000_000, size=0), timeout_s=60)
    said = result.text().split()
    stopped = result.exit_code == 137 or (len(said) == 2 and int(said[0]) == errno.ENOSPC)
    holds(f"it was told that there is no space, or killed ({result.exit_code}, {said})", stopped)
    equal("afterwards", (await bench.sandbox.exec("echo on")).stdout, b"on\n")


@check(
    80,
    "Two busy loops of 2 s on a quarter of a core get about half a second together.",
    needs=("cpus",),
    cpus=0.25,
)
async def cpu_quota_is_honoured(bench: Bench) -> None:
    script = "for i in 1 2; do timeout 2 sh -c 'while :; do :; done' & done; wait; times"
    text = (await bench.sandbox.exec(script, timeout_s=60)).text()
    minutes = [part.rstrip("s").split("m") for part in text.split()[2:]]
    used = sum(60 * int(minute) + float(second) for minute, second in minutes)
    holds(f"they used 0.1 to 1.0 s ({used:.2f} s)", 0.1 < used < 1.0)


_BUFFERS = """
import fcntl, os, time
for _ in range(24):
    if os.fork() == 0:
        held = []
        while True:
            try:
                held.append(os.pipe())
                fcntl.fcntl(held[-1][1], 1031, 1 << 20)  # F_SETPIPE_SZ
                os.set_blocking(held[-1][1], False)
                while True: os.write(held[-1][1], bytes(1 << 16))
            except OSError: time.sleep(0.001)
time.sleep(2)
"""


@check(
    136,
    "Full file systems and buffers of pipes at once cost the agent its processes, not the sandbox.",
    needs=("memory_mb",),
    memory_mb=96,
    disk_mb=69,
)
async def memory_of_no_process_ends_no_sandbox(bench: Bench) -> None:
    await bench.sandbox.write_file("kept", b"here")
    await bench.sandbox.exec("for d in . /tmp /dev/shm; do head -c 99999999 /dev/zero >$d/fill; done")
    await bench.python(_BUFFERS, timeout_s=3)
    for _ in range(3):
        await bench.sandbox.exec("true")  # may be killed: memory is still full
    equal("a file afterwards", await bench.sandbox.read_file("kept"), b"here")


@check(81, "A crash leaves no core file.")
async def no_core_is_dumped(bench: Bench) -> None:
    result = await bench.sandbox.exec("ulimit -c; sh -c 'kill -SEGV $$'; echo $?; ls -A")
    equal("limit, status and files", result.stdout.split(), [b"0", b"139"])


@check(82, "A file that claims 5 GB cannot be made, or is refused without being read.")
async def a_sparse_giant_is_refused_by_its_size(bench: Bench) -> None:
    await bench.sandbox.exec("truncate -s 5G giant || truncate -s 100M giant")
    size = int((await bench.sandbox.exec("stat -c %s giant")).text())
    holds(f"the file is larger than a read may be ({size >> 20} MB)", size > 10 << 20)
    with raises(OSError, what="reading it"):
        await asyncio.wait_for(bench.sandbox.read_file("giant"), 5)


_MAX_STALL_MS = 50.0
_TRIES = 3
_MAX_IDLE_MB = 5.0
"""Stated in docs/sandboxes.md; shared pages are counted in parts."""
_MAX_GROWTH_S = 0.05
_MAX_OUTAGE_S = 15.0


@check(111, "Commands in many sandboxes at once each get their own result.")
async def parallel_commands_in_many_sandboxes(bench: Bench) -> None:

    async def one(number: int) -> tuple[bytes, int]:
        async with bench.open() as sandbox:
            await sandbox.write_file("number", b"%d" % number)
            result = await sandbox.exec(f"cat number; exit {number % 100}")
            return result.stdout, result.exit_code

    results = await asyncio.gather(*(one(number) for number in range(bench.crowd)))
    equal("results", results, [(b"%d" % number, number % 100) for number in range(bench.crowd)])


@check(112, "64 commands at once in one sandbox each get their own result, one after the other or together.")
async def parallel_commands_in_one_sandbox(bench: Bench) -> None:
    results = await asyncio.gather(*(bench.sandbox.exec(["echo", str(number)]) for number in range(64)))
    equal("results", [result.stdout for result in results], [b"%d\n" % number for number in range(64)])


@check(113, "While many sandboxes open, the event loop never stands still for 50 ms of its own doing.")
async def opening_many_does_not_stall_the_loop(bench: Bench) -> None:
    stall_ms = _MAX_STALL_MS
    for _ in range(_TRIES):
        # Other programs cause stalls now and then, opening causes them each time.
        if stall_ms >= _MAX_STALL_MS:
            found = await bench.ask_host_program("stall", str(bench.crowd))
            stall_ms = found["stall_ms"]
    holds(f"the longest stall is below {_MAX_STALL_MS} ms ({stall_ms:.1f} ms)", stall_ms < _MAX_STALL_MS)


@check(114, "A command that waits for another one has its whole time left when it starts.")
async def waiting_is_not_charged_to_the_timeout(bench: Bench) -> None:
    slow = asyncio.create_task(bench.sandbox.exec("sleep 1", timeout_s=30))
    await asyncio.sleep(0)
    quick = await bench.sandbox.exec("true", timeout_s=0.7)
    equal("timed_out", (await slow).timed_out or quick.timed_out, False)


@check(115, "An idle sandbox takes at most 5 MB of the host's memory.")
async def idle_sandboxes_fit_the_stated_memory(bench: Bench) -> None:
    found = await bench.ask_host_program("idle", str(bench.crowd))
    if not found["processes"]:
        raise MissingError("the memory of the sandboxes' processes cannot be seen from here")
    holds(
        f"one takes at most {_MAX_IDLE_MB} MB ({found['each_mb']:.2f} MB)", found["each_mb"] <= _MAX_IDLE_MB
    )


@check(116, "Opening costs a host of 1 GB no more processor time than a small one: nothing copies its pages.")
async def a_large_host_opens_as_fast(bench: Bench) -> None:
    found = await bench.ask_host_program("spawn_cost", "1024")
    grown = found["large_s"] - found["small_s"]
    holds(f"it costs less than {_MAX_GROWTH_S} s more ({grown:.3f} s)", grown < _MAX_GROWTH_S)


@check(117, "Without engine and programs a backend refuses in time with an error of ours, or needs neither.")
async def an_outage_is_told_at_once(bench: Bench) -> None:
    nowhere = {"PATH": "/nonexistent", "DOCKER_HOST": "unix:///nonexistent.sock"}
    found = await bench.ask_host_program("outage", env=nowhere)
    holds(f"it is a working sandbox or an error of ours ({found['outcome']})", found["understood"])
    holds(f"it took less than {_MAX_OUTAGE_S} s ({found['seconds']:.1f} s)", found["seconds"] < _MAX_OUTAGE_S)


_HUNDRED = "for i in $(seq 100); do sleep 1000 & done; echo all"
_HOG = "python3 -c 'x = bytearray(1 << 30)'"


@check(118, "Every limit that the record calls enforced holds when it is tried.", **_TIGHT)
async def enforced_limits_match_a_probe(bench: Bench) -> None:
    enforced = bench.sandbox.record.enforced
    holds("some limit is enforced", bool(enforced))
    for name in enforced:
        if (probe := _PROBES.get(name)) is None:
            continue
        async with bench.open(**_TIGHT) as sandbox:
            if isinstance(probe, str):
                found = (await sandbox.exec(probe)).exit_code == 9
            else:
                found = await probe(sandbox)
            holds(f"{name} holds when it is tried", found)


@check(119, "A limit that cannot hold is an error, never ignored.")
async def an_unenforceable_limit_is_refused(bench: Bench) -> None:
    try:
        async with bench.open(cpus=0.5) as sandbox:
            holds("a quota of processors that was taken is enforced", "cpus" in sandbox.record.enforced)
    except IsolationError as error:
        holds("the refusal names the limit", "cpus" in str(error))
    with raises(ConfigError, what="a workspace larger than the memory that holds it"):
        async with bench.open(memory_mb=64, disk_mb=4096):
            pass


@check(120, "The record names backend, tier, limits and, of a backend with images, the image's digest.")
async def the_record_says_how_it_isolates(bench: Bench) -> None:
    record = bench.sandbox.record
    equal("backend and limits", (record.backend, record.limits), (bench.target.backend, bench.target.limits))
    holds("the tier is named", bool(record.tier))
    try:
        async with bench.target.open(options={"image": "turnwise.invalid/none:none"}):
            pass
    except (ConfigError, SandboxError):
        holds("there is no image, or it is a digest", record.image is None or "sha256:" in record.image)
    else:
        raise MissingError("the backend opens whatever image it is given")


async def _holds_memory(sandbox: Sandbox) -> bool:
    result = await sandbox.exec(_HOG)
    return result.exit_code != 0 and (result.oom_killed or b"MemoryError" in result.stderr)


async def _holds_pids(sandbox: Sandbox) -> bool:
    result = await sandbox.exec(_HUNDRED, timeout_s=20)
    count = await sandbox.exec(COUNT_PROCESSES)
    return b"all" not in result.stdout or count.exit_code != 0 or int(count.stdout) <= 60


async def _holds_disk_watched(sandbox: Sandbox) -> bool:
    script = "for i in $(seq 200); do head -c 2000000 /dev/zero >$i || exit 9; sleep 0.05; done"
    ended = (await sandbox.exec(script)).exit_code
    used = int((await sandbox.exec("du -sk . | cut -f1")).text()) >> 10
    return ended == 137 and used < 150


async def _holds_output(sandbox: Sandbox) -> bool:
    result = await sandbox.exec("head -c 100000000 /dev/zero")
    return result.exit_code != 0 and result.stdout_total < 100_000_000


_PROBES: Mapping[str, Callable[[Sandbox], Awaitable[bool]] | str] = {
    "memory_mb": _holds_memory,
    "memory_mb_per_process": _holds_memory,
    "pids": _holds_pids,
    "disk_mb": "for i in 1 2 3 4 5 6; do head -c 12000000 /dev/zero >$i || exit 9; done",
    "disk_mb_watched": _holds_disk_watched,
    "file_mb": "head -c 30000000 /dev/zero >big; [ $(stat -c %s big) -le 16777216 ] && exit 9",
    "output_mb": _holds_output,
    "network": "[ $(cat /proc/net/dev | grep -c :) = 1 ] && exit 9",
}
"""A check for each limit but `cpus`: a function, or a script that exits with 9 if the limit holds."""
