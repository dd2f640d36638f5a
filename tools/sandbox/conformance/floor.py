"""Checks 1 to 44: files and commands, under the names of Inspect's own suite."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tools.sandbox.conformance.checks import Bench, check, declare_missing, equal, holds, raises

_SPECIAL = "café résumé €100 中文 😀"
_OCTAL = "".join(f"\\{byte:03o}" for byte in _SPECIAL.encode())
"""Only ASCII is sent, so that two wrong conversions cannot cancel each other."""
_LARGE = 50 << 20
_ONE_USER = "commands run as the sandbox's one unprivileged user; `exec` has no `user`"


@check(25, "Output outside ASCII is decoded as UTF-8.")
async def exec_output_utf(bench: Bench) -> None:
    equal("text", (await bench.sandbox.exec(f"printf '{_OCTAL}'")).text(), _SPECIAL)


@check(28, "A command that takes too long is ended and marked as timed out.")
async def exec_timeout(bench: Bench) -> None:
    result = await bench.sandbox.exec(["sleep", "1000"], timeout_s=0.5)
    holds("the result says timed_out", result.timed_out)


@check(30, "After a timeout the process is gone; it was there before.")
async def exec_timeout_kills_process(bench: Bench) -> None:
    await _dies_with_the_timeout(bench, "echo $$ >pids; sleep 1000; :", 1)


@check(31, "After a timeout children are gone too; they were there before.")
async def exec_timeout_kills_child_processes(bench: Bench) -> None:
    started = "sleep 1001 & echo $! >pids; sh -c 'echo $$ >>pids; sleep 1002; :' & echo $! >>pids; sleep 1003"
    await _dies_with_the_timeout(bench, started, 3)


@check(34, "Standard input arrives, and none is an end at once.")
async def exec_input_text(bench: Bench) -> None:
    equal("stdout", (await bench.sandbox.exec(["cat"], stdin=b"hello\nworld\n")).stdout, b"hello\nworld\n")
    empty = await bench.sandbox.exec(["cat"], timeout_s=10)
    equal("exit code and stdout of no input", (empty.exit_code, empty.stdout), (0, b""))


@check(36, "Input may be any bytes.")
async def exec_input_binary(bench: Bench) -> None:
    data = b"\xc3\x28\x00\xff\x01\x02bytes"
    await bench.sandbox.exec("cat > file", stdin=data)
    equal("content", await bench.sandbox.read_file("file"), data)


@check(37, "50 MiB of input arrive whole.")
async def exec_input_large(bench: Bench) -> None:
    result = await bench.sandbox.exec(["wc", "-c"], stdin=b"a" * _LARGE)
    equal("bytes", result.text().split(), [str(_LARGE)])


@check(38, "1 MiB of arguments arrives whole.")
async def exec_large_command(bench: Bench) -> None:
    words = ["x" * (64 << 10)] * 16
    result = await bench.sandbox.exec(["printf", "%s", *words], max_output_bytes=2 << 20)
    equal("exit code", result.exit_code, 0)
    equal("bytes", len(result.stdout), 1 << 20)


declare_missing(39, "exec_as_user", "A command runs as a given user.", _ONE_USER)
declare_missing(40, "exec_as_nonexistent_user", "A user that does not exist is an error.", _ONE_USER)


@check(41, "Commands start where relative paths of files start.")
async def cwd_unspecified(bench: Bench) -> None:
    await bench.sandbox.write_file("here", b"x")
    result = await bench.sandbox.exec("ls; pwd")
    equal("stdout", result.text(), f"here\n{bench.sandbox.workdir}\n")


@check(42, "A command starts in the directory given.")
async def cwd_custom(bench: Bench) -> None:
    result = await bench.sandbox.exec("pwd; ls", cwd="/usr/bin")
    holds("the listing is that of /usr/bin", {"/usr/bin", "env"} <= set(result.text().splitlines()))


@check(43, "A relative directory is below the workspace.")
async def cwd_relative(bench: Bench) -> None:
    await bench.sandbox.write_file("sub/file", b"x")
    equal("stdout", (await bench.sandbox.exec(["ls"], cwd="sub")).stdout, b"file\n")


@check(44, "An absolute directory that was just made works.")
async def cwd_absolute(bench: Bench) -> None:
    folder = f"{await bench.temporary()}/sub"
    await bench.sandbox.write_file(f"{folder}/file", b"x")
    equal("stdout", (await bench.sandbox.exec(["ls"], cwd=folder)).stdout, b"file\n")


async def _dies_with_the_timeout(bench: Bench, command: str, count: int) -> None:
    watch = f"({command}) & until [ $(cat pids 2>/dev/null | wc -l) = {count} ]; do sleep 0.01; done; "
    alive = "for p in $(cat pids); do kill -0 $p && echo $p; done; "
    result = await bench.sandbox.exec(f"{watch}{alive} wait", timeout_s=1.5)
    holds("it timed out", result.timed_out)
    equal("processes that were alive before the timeout", len(result.stdout.split()), count)
    left = await bench.sandbox.exec(f"{alive} true")
    equal("processes after the timeout", left.stdout, b"")


@check(3, "50 MiB go in and out whole.")
async def read_and_write_large_file_binary(bench: Bench) -> None:
    data = b"\xc3" * _LARGE
    await bench.sandbox.write_file("large", data)
    holds("50 MiB come back", await bench.sandbox.read_file("large", max_bytes=_LARGE) == data)


@check(5, "Missing directories of an absolute path are made.")
async def read_and_write_file_including_directory_absolute(bench: Bench) -> None:
    await _round_trip(bench, f"{await bench.temporary()}/new/er/file", b"x")


@check(6, "Missing directories of a relative path are made, below the workspace.")
async def read_and_write_file_including_directory_relative(bench: Bench) -> None:
    await _round_trip(bench, "new/er/file", b"x")
    await _round_trip(bench, f"{bench.sandbox.workdir}/new/er/file", b"y")


@check(7, "An empty file reads as nothing.")
async def read_file_zero_length(bench: Bench) -> None:
    await bench.sandbox.exec("touch empty")
    equal("content", await bench.sandbox.read_file("empty"), b"")


@check(8, "A missing file is FileNotFoundError with its name.")
async def read_file_not_found(bench: Bench) -> None:
    with raises(FileNotFoundError, what="reading a missing file", naming="nonexistent"):
        await bench.sandbox.read_file("nonexistent")


@check(9, "A file without read permission is PermissionError.")
async def read_file_not_allowed(bench: Bench) -> None:
    await bench.sandbox.write_file("locked", b"x")
    await bench.sandbox.exec("chmod -r locked")
    with raises(PermissionError, what="reading a locked file"):
        await bench.sandbox.read_file("locked")


@check(10, "A directory is IsADirectoryError.")
async def read_file_is_directory(bench: Bench) -> None:
    with raises(IsADirectoryError, what="reading /usr"):
        await bench.sandbox.read_file("/usr")


@check(11, "A name that makes no sense is FileNotFoundError.")
async def read_file_nonsense_name(bench: Bench) -> None:
    with raises(FileNotFoundError, what="reading an address"):
        await bench.sandbox.read_file("https:/en.wikipedia.org/wiki/Bart%C5%82omiej_Kasprzykowski")


@check(12, "A file over the limit is an error, one at the limit is not.")
async def read_file_limit(bench: Bench) -> None:
    await bench.sandbox.write_file("file", b"a" * 2048)
    with raises(OSError, what="reading 2048 bytes with room for 2047"):
        await bench.sandbox.read_file("file", max_bytes=2047)
    equal("bytes at the limit", len(await bench.sandbox.read_file("file", max_bytes=2048)), 2048)


@check(18, "Zero bytes make an empty file that is really there.")
async def write_binary_file_zero_length(bench: Bench) -> None:
    await bench.sandbox.write_file("empty.bin", b"")
    equal("size", (await bench.sandbox.exec("stat -c %s empty.bin")).text(), "0\n")


async def _round_trip(bench: Bench, path: str, data: bytes) -> None:
    await bench.sandbox.write_file(path, data)
    equal(f"content of {path}", await bench.sandbox.read_file(path), data)


async def _refuses_a_directory(bench: Bench, path: str, data: bytes) -> None:
    await bench.sandbox.write_file(f"{path}/file", b"unused")
    with raises(IsADirectoryError, what="writing over a directory"):
        await bench.sandbox.write_file(path, data)


async def _refuses_a_protected_file(bench: Bench, path: str, data: bytes) -> None:
    await bench.sandbox.write_file(path, b"impervious")
    await bench.sandbox.exec(f"chmod -w {path}")
    with raises(PermissionError, what="writing over a protected file"):
        await bench.sandbox.write_file(path, data)
    equal("content", await bench.sandbox.read_file(path), b"impervious")


_Step = Callable[[Bench, str, bytes], Awaitable[None]]
_BYTES = b"\xc3\x28"
_SHELL_TEXT = b"$HOME `whoami` 'single' \"double\" \\backslash\nnewline\n"
_WRITES: Sequence[tuple[int, str, str, _Step, str, tuple[bytes, ...]]] = (
    (1, "read_and_write_file_text", "Text comes back as it was written.",
     _round_trip, "a.txt", (b"great #content\nincluding newlines",)),
    (2, "read_and_write_file_binary", "Bytes that are not UTF-8 come back as they were written.",
     _round_trip, "a.bin", (b"\xc3\x28\x00\xff",)),
    (4, "write_file_text_utf", "Text outside ASCII comes back as it was written.",
     _round_trip, "a.txt", ("✨☽✨🌞✨🚀 中文".encode(),)),
    (13, "write_text_file_zero_length", "Empty text makes an empty file.", _round_trip, "empty.txt", (b"",)),
    (14, "write_text_file_space", "A name with spaces works for text.",
     _round_trip, "file with space.txt", (b"to the moon",)),
    (15, "write_text_file_is_directory", "Text over a directory is IsADirectoryError.",
     _refuses_a_directory, "directory", (b"text",)),
    (16, "write_text_file_without_permissions",
     "Text over a write-protected file is PermissionError, and the file keeps its content.",
     _refuses_a_protected_file, "protected", (b"text",)),
    (17, "write_text_file_exists", "Text over a file replaces it.",
     _round_trip, "file", (b"mundane content that is longer", b"altered content")),
    (19, "write_binary_file_space", "A name with spaces works for bytes.",
     _round_trip, "file with space.bin", (_BYTES,)),
    (20, "write_binary_file_is_directory", "Bytes over a directory is IsADirectoryError.",
     _refuses_a_directory, "directory", (_BYTES,)),
    (21, "write_binary_file_without_permissions",
     "Bytes over a write-protected file is PermissionError, and the file keeps its content.",
     _refuses_a_protected_file, "protected", (_BYTES,)),
    (22, "write_binary_file_exists", "Bytes over a file replace it.",
     _round_trip, "file", (_BYTES * 100, b"\xc3\x29")),
)  # fmt: skip
"""Number, name and claim of a check, its step, path and contents."""
_RESULTS: Sequence[tuple[int, str, str, str | list[str], dict[str, Any], dict[str, object]]] = (
    (23, "exec_output", "Standard output comes back as it was written.",
     "echo foo; echo bar", {}, {"stdout": b"foo\nbar\n"}),
    (24, "exec_stderr", "Standard error comes back as it was written.",
     "echo foo; echo boof >&2", {}, {"stderr": b"boof\n"}),
    (26, "exec_stderr_utf", "Standard error outside ASCII keeps its bytes.",
     f"printf '{_OCTAL}' >&2", {}, {"stderr": _SPECIAL.encode()}),
    (27, "exec_returncode", "The exit status is the command's.", "echo foo; exit 70", {}, {"exit_code": 70}),
    (29, "exec_timeout_not_raised_on_fast_signal_death",
     "A command that a signal ends at once did not time out.",
     "kill -TERM $$", {"timeout_s": 30}, {"exit_code": 143, "timed_out": False}),
    (32, "exec_permission_error", "A file that may not be executed is exit status 126, unlike a missing one.",
     ["/etc/passwd"], {}, {"exit_code": 126}),
    (33, "exec_env_vars", "Variables given to a command arrive, spaces included.",
     'echo "$A"; echo "$B"', {"env": {"A": "chonko zamboodle", "B": "x=y"}},
     {"stdout": b"chonko zamboodle\nx=y\n"}),
    (35, "exec_input_shell_special", "Input is never read as shell.",
     ["cat"], {"stdin": _SHELL_TEXT}, {"stdout": _SHELL_TEXT}),
)  # fmt: skip
"""Number, name and claim of a check, its command, the options and the expected fields of the result."""


def _declare_write(
    number: int, name: str, claim: str, step: _Step, path: str, contents: tuple[bytes, ...]
) -> None:
    async def run(bench: Bench) -> None:
        for data in contents:
            await step(bench, path, data)

    check(number, claim, name=name)(run)


def _declare_result(
    number: int, name: str, claim: str, command: str | list[str], options: Any, wanted: dict[str, object]
) -> None:
    async def run(bench: Bench) -> None:
        result = await bench.sandbox.exec(command, **options)
        for field, value in wanted.items():
            equal(field.replace("_", " "), getattr(result, field), value)

    check(number, claim, name=name)(run)


for _row in _WRITES:
    _declare_write(*_row)
for _row in _RESULTS:
    _declare_result(*_row)
