"""Checks 118 to 120: what a sandbox says about itself is so."""

from collections.abc import Awaitable, Callable, Mapping

from tools.errors import ConfigError, IsolationError, SandboxError
from tools.sandbox.base import Sandbox
from tools.sandbox.conformance.bench import COUNT_PROCESSES, Bench, MissingError
from tools.sandbox.conformance.checks import check, equal, holds, raises

_FORKS = "for i in $(seq 100); do sleep 1000 & done; echo all"
_HOG = "python3 -c 'x = bytearray(1 << 30)'"


@check(118, memory_mb=192, disk_mb=48, file_mb=16, pids=40, output_mb=4)
async def enforced_limits_match_a_probe(bench: Bench) -> None:
    """Every limit that the record calls enforced holds when it is tried."""
    enforced = bench.sandbox.record.enforced
    holds("some limit is enforced", bool(enforced))
    for name in enforced:
        if name not in _PROBES:
            continue
        async with bench.open(memory_mb=192, disk_mb=48, file_mb=16, pids=40, output_mb=4) as sandbox:
            holds(f"{name} holds when it is tried", await _PROBES[name](sandbox))


@check(119)
async def an_unenforceable_limit_is_refused(bench: Bench) -> None:
    """A limit that cannot hold is an error, never ignored."""
    try:
        async with bench.open(cpus=0.5) as sandbox:
            holds("a quota of processors that was taken is enforced", "cpus" in sandbox.record.enforced)
    except IsolationError as error:
        holds("the refusal names the limit", "cpus" in str(error))
    with raises(ConfigError, what="a workspace larger than the memory that holds it"):
        async with bench.open(memory_mb=64, disk_mb=4096):
            pass


@check(120)
async def the_record_says_how_it_isolates(bench: Bench) -> None:
    """The record names backend, tier, limits and, of a backend with images, the image's digest."""
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


async def _memory(sandbox: Sandbox) -> bool:
    result = await sandbox.exec(_HOG)
    return result.exit_code != 0 and (result.oom_killed or b"MemoryError" in result.stderr)


async def _processes(sandbox: Sandbox) -> bool:
    result = await sandbox.exec(_FORKS, timeout_s=20)
    count = await sandbox.exec(COUNT_PROCESSES)
    return b"all" not in result.stdout or count.exit_code != 0 or int(count.stdout) <= 60


async def _disk(sandbox: Sandbox) -> bool:
    script = "for i in 1 2 3 4 5 6; do head -c 12000000 /dev/zero >$i || exit 9; done"
    return (await sandbox.exec(script)).exit_code == 9


async def _disk_watched(sandbox: Sandbox) -> bool:
    script = "for i in $(seq 200); do head -c 2000000 /dev/zero >$i || exit 9; sleep 0.05; done"
    ended = (await sandbox.exec(script)).exit_code
    used = int((await sandbox.exec("du -sk . | cut -f1")).text()) >> 10
    return ended == 137 and used < 150


async def _one_file(sandbox: Sandbox) -> bool:
    await sandbox.exec("head -c 30000000 /dev/zero >big")
    return int((await sandbox.exec("stat -c %s big")).stdout) <= 16 << 20


async def _output(sandbox: Sandbox) -> bool:
    result = await sandbox.exec("head -c 100000000 /dev/zero")
    return result.exit_code != 0 and result.stdout_total < 100_000_000


async def _network(sandbox: Sandbox) -> bool:
    return (await sandbox.exec("cat /proc/net/dev | grep -c ':' ")).stdout == b"1\n"


_PROBES: Mapping[str, Callable[[Sandbox], Awaitable[bool]]] = {
    "memory_mb": _memory,
    "memory_mb_per_process": _memory,
    "pids": _processes,
    "disk_mb": _disk,
    "disk_mb_watched": _disk_watched,
    "file_mb": _one_file,
    "output_mb": _output,
    "network": _network,
}
"""Of `cpus` see `cpu_quota_is_honoured`."""
