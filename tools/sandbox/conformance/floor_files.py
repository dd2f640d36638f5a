"""Checks 1 to 22: files, under the names of Inspect's own suite."""

from tools.sandbox.conformance.bench import Bench
from tools.sandbox.conformance.checks import check, equal, holds, raises

_LARGE = 50 << 20


@check(1)
async def read_and_write_file_text(bench: Bench) -> None:
    """Text comes back as it was written."""
    await _round_trip(bench, "a.txt", b"great #content\nincluding newlines")


@check(2)
async def read_and_write_file_binary(bench: Bench) -> None:
    """Bytes that are not UTF-8 come back as they were written."""
    await _round_trip(bench, "a.bin", b"\xc3\x28\x00\xff")


@check(3)
async def read_and_write_large_file_binary(bench: Bench) -> None:
    """50 MiB go in and out whole."""
    data = b"\xc3" * _LARGE
    await bench.sandbox.write_file("large", data)
    holds("50 MiB come back", await bench.sandbox.read_file("large", max_bytes=_LARGE) == data)


@check(4)
async def write_file_text_utf(bench: Bench) -> None:
    """Text outside ASCII comes back as it was written."""
    await _round_trip(bench, "a.txt", "✨☽✨🌞✨🚀 中文".encode())


@check(5)
async def read_and_write_file_including_directory_absolute(bench: Bench) -> None:
    """Missing directories of an absolute path are made."""
    await _round_trip(bench, f"{await bench.temporary()}/new/er/file", b"x")


@check(6)
async def read_and_write_file_including_directory_relative(bench: Bench) -> None:
    """Missing directories of a relative path are made, below the workspace."""
    await _round_trip(bench, "new/er/file", b"x")
    await _round_trip(bench, f"{bench.sandbox.workdir}/new/er/file", b"y")


@check(7)
async def read_file_zero_length(bench: Bench) -> None:
    """An empty file reads as nothing."""
    await bench.sandbox.exec("touch empty")
    equal("content", await bench.sandbox.read_file("empty"), b"")


@check(8)
async def read_file_not_found(bench: Bench) -> None:
    """A missing file is FileNotFoundError with its name."""
    try:
        await bench.sandbox.read_file("nonexistent")
    except FileNotFoundError as error:
        holds("the message names the file", "nonexistent" in str(error))
        return
    holds("FileNotFoundError was raised", False)


@check(9)
async def read_file_not_allowed(bench: Bench) -> None:
    """A file without read permission is PermissionError."""
    await bench.sandbox.write_file("locked", b"x")
    await bench.sandbox.exec("chmod -r locked")
    with raises(PermissionError, what="reading a locked file"):
        await bench.sandbox.read_file("locked")


@check(10)
async def read_file_is_directory(bench: Bench) -> None:
    """A directory is IsADirectoryError."""
    with raises(IsADirectoryError, what="reading /usr"):
        await bench.sandbox.read_file("/usr")


@check(11)
async def read_file_nonsense_name(bench: Bench) -> None:
    """A name that makes no sense is FileNotFoundError."""
    with raises(FileNotFoundError, what="reading an address"):
        await bench.sandbox.read_file("https:/en.wikipedia.org/wiki/Bart%C5%82omiej_Kasprzykowski")


@check(12)
async def read_file_limit(bench: Bench) -> None:
    """A file over the limit is an error, one at the limit is not."""
    await bench.sandbox.write_file("file", b"a" * 2048)
    with raises(OSError, what="reading 2048 bytes with room for 2047"):
        await bench.sandbox.read_file("file", max_bytes=2047)
    equal("bytes at the limit", len(await bench.sandbox.read_file("file", max_bytes=2048)), 2048)


@check(13)
async def write_text_file_zero_length(bench: Bench) -> None:
    """Empty text makes an empty file."""
    await _round_trip(bench, "empty.txt", b"")


@check(14)
async def write_text_file_space(bench: Bench) -> None:
    """A name with spaces works for text."""
    await _round_trip(bench, "file with space.txt", b"to the moon")


@check(15)
async def write_text_file_is_directory(bench: Bench) -> None:
    """Text over a directory is IsADirectoryError."""
    await _refuses_a_directory(bench, b"text")


@check(16)
async def write_text_file_without_permissions(bench: Bench) -> None:
    """Text over a write-protected file is PermissionError, and the file keeps its content."""
    await _refuses_a_protected_file(bench, b"text")


@check(17)
async def write_text_file_exists(bench: Bench) -> None:
    """Text over a file replaces it."""
    await _round_trip(bench, "file", b"mundane content that is longer")
    await _round_trip(bench, "file", b"altered content")


@check(18)
async def write_binary_file_zero_length(bench: Bench) -> None:
    """Zero bytes make an empty file that is really there."""
    await bench.sandbox.write_file("empty.bin", b"")
    equal("size", (await bench.sandbox.exec("stat -c %s empty.bin")).text(), "0\n")


@check(19)
async def write_binary_file_space(bench: Bench) -> None:
    """A name with spaces works for bytes."""
    await _round_trip(bench, "file with space.bin", b"\xc3\x28")


@check(20)
async def write_binary_file_is_directory(bench: Bench) -> None:
    """Bytes over a directory is IsADirectoryError."""
    await _refuses_a_directory(bench, b"\xc3\x28")


@check(21)
async def write_binary_file_without_permissions(bench: Bench) -> None:
    """Bytes over a write-protected file is PermissionError, and the file keeps its content."""
    await _refuses_a_protected_file(bench, b"\xc3\x28")


@check(22)
async def write_binary_file_exists(bench: Bench) -> None:
    """Bytes over a file replace it."""
    await _round_trip(bench, "file", b"\xc3\x28" * 100)
    await _round_trip(bench, "file", b"\xc3\x29")


async def _round_trip(bench: Bench, path: str, data: bytes) -> None:
    await bench.sandbox.write_file(path, data)
    equal(f"content of {path}", await bench.sandbox.read_file(path), data)


async def _refuses_a_directory(bench: Bench, data: bytes) -> None:
    await bench.sandbox.write_file("directory/file", b"unused")
    with raises(IsADirectoryError, what="writing over a directory"):
        await bench.sandbox.write_file("directory", data)


async def _refuses_a_protected_file(bench: Bench, data: bytes) -> None:
    await bench.sandbox.write_file("protected", b"impervious")
    await bench.sandbox.exec("chmod -w protected")
    with raises(PermissionError, what="writing over a protected file"):
        await bench.sandbox.write_file("protected", data)
    equal("content", await bench.sandbox.read_file("protected"), b"impervious")
