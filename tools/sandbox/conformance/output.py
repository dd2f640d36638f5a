"""Checks 58 to 66: streams are kept apart, bounded, counted and unforgeable."""

import resource
import time
from pathlib import Path

from tools.sandbox.conformance.bench import Bench
from tools.sandbox.conformance.checks import check, equal, holds

_FORGED = (
    "for fd in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do "
    'for n in 1 2 3; do echo "$n 0" >&$fd; done; echo 0 >&$fd; done 2>/dev/null; '
    "echo SHELLPS1PREFIX EXITCODESTART0EXITCODEEND; "
)


@check(58)
async def background_process_does_not_hold_the_result(bench: Bench) -> None:
    """A background process that keeps stdout open does not delay the result."""
    started = time.monotonic()
    result = await bench.sandbox.exec("sleep 1000 & echo hi", timeout_s=30)
    spent = time.monotonic() - started
    equal("result", (result.stdout, result.timed_out), (b"hi\n", False))
    holds(f"it took less than half a second ({spent:.2f} s)", spent < 0.5)


@check(59, output_mb=16)
async def endless_output_is_capped_and_killed(bench: Bench) -> None:
    """`yes` is stopped at the hard cap, and costs the host little memory."""
    before = _resident_bytes()
    result = await bench.sandbox.exec("yes", timeout_s=60)
    grown = _resident_bytes() - before
    equal("timed_out and exit code", (result.timed_out, result.exit_code), (False, 137))
    holds("it was stopped after the cap", result.stdout_total > 16 << 20)
    holds("it was stopped soon after the cap", result.stdout_total < 64 << 20)
    holds(f"the host grew by less than 64 MB ({grown >> 20} MB)", grown < 64 << 20)


@check(60)
async def totals_and_truncation_are_exact(bench: Bench) -> None:
    """Of long output head and tail are kept, and all of it is counted."""
    result = await bench.sandbox.exec("seq 100000; seq 10 >&2", max_output_bytes=20)
    whole = "".join(f"{number}\n" for number in range(1, 100001)).encode()
    equal("total", result.stdout_total, len(whole))
    equal("kept", result.stdout, whole[:10] + whole[-10:])
    equal("truncated and stderr", (result.truncated, result.stderr_total), (True, 21))
    exact = await bench.sandbox.exec("printf 12345", max_output_bytes=5)
    equal("output at the limit", (exact.stdout, exact.truncated), (b"12345", False))


@check(61)
async def split_characters_decode(bench: Bench) -> None:
    """Characters of several bytes survive chunks, and a cut in the middle of one is no error."""
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


@check(62)
async def one_line_of_a_mebibyte(bench: Bench) -> None:
    """1 MiB without a newline comes back whole."""
    result = await bench.sandbox.exec("head -c 1048576 /dev/zero | tr '\\0' x", max_output_bytes=2 << 20)
    holds("all of it is x", result.stdout == b"x" * (1 << 20))


@check(63)
async def stdout_and_stderr_are_not_mixed(bench: Bench) -> None:
    """Two streams written at the same time stay two streams."""
    command = "for i in $(seq 300); do echo out; echo err >&2; done"
    for result in (await bench.sandbox.exec(command), await bench.sandbox.shell(command)):
        equal("stdout", result.stdout, b"out\n" * 300)
        equal("stderr", result.stderr, b"err\n" * 300)


@check(64)
async def large_output_takes_linear_time(bench: Bench) -> None:
    """Four times the output takes about four times as long, not sixteen."""
    times: dict[int, float] = {}
    for size in (8 << 20, 32 << 20):
        started = time.monotonic()
        result = await bench.sandbox.exec(f"head -c {size} /dev/zero", max_output_bytes=size)
        times[size] = time.monotonic() - started
        equal("bytes", len(result.stdout), size)
    small, large = times.values()
    holds(f"32 MiB take at most 10 times as long as 8 MiB ({small:.2f} s, {large:.2f} s)",
          large < 10 * small + 0.5)  # fmt: skip


@check(65)
async def output_cannot_forge_the_status(bench: Bench) -> None:
    """Whatever a command prints, and on whatever descriptor, its status is its own."""
    equal("exec", (await bench.sandbox.exec(["bash", "-c", _FORGED + "exit 3"])).exit_code, 3)
    equal("shell", (await bench.sandbox.shell(_FORGED + "(exit 3)")).exit_code, 3)
    equal("the next command", (await bench.sandbox.shell("false")).exit_code, 1)


@check(66)
async def bytes_of_output_are_preserved(bench: Bench) -> None:
    """NUL, invalid UTF-8 and carriage returns come back as they are."""
    result = await bench.sandbox.exec(r"printf 'a\0\377\200\r\n\033[0m'")
    equal("stdout", result.stdout, b"a\0\xff\x80\r\n\x1b[0m")


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
