"""Checks 93 to 102 and 133 to 135: file operations stay inside, return in time and cannot be disturbed."""

import asyncio
import io
import posixpath
import tarfile
from collections.abc import Mapping
from functools import cache

from tools.sandbox.archive import ArchivedFile, pack, unpack
from tools.sandbox.conformance.checks import Bench, check, equal, holds, host_file, raises

_CONTENT = b"escaped"


@cache
def hostile_archives() -> Mapping[str, bytes]:
    plain = _archive(_plain("escaped"))
    return {
        "`..`": _archive(_plain("../escaped")),
        "`..` further down": _archive(_plain("a/../../escaped")),
        "an absolute path": _archive(_plain("/tmp/escaped")),
        "an absolute path in a header": _archive(_plain("fine"), path="/tmp/escaped"),
        "`..` in a header": _archive(_plain("fine"), path="../escaped"),
        "a symbolic link": _archive(("escaped", tarfile.SYMTYPE, "/etc/passwd")),
        "a file behind its own link": _archive(("way", tarfile.SYMTYPE, "/tmp"), _plain("way/escaped")),
        "a hard link": _archive(("escaped", tarfile.LNKTYPE, "harmless")),
        "a character device": _archive(("escaped", tarfile.CHRTYPE, "")),
        "a block device": _archive(("escaped", tarfile.BLKTYPE, "")),
        "a FIFO": _archive(("escaped", tarfile.FIFOTYPE, "")),
        "a sparse file": _archive(_plain("escaped"), GNU_sparse_major="1", GNU_sparse_realsize=str(1 << 40)),
        "a sparse file of the old kind": _archive(("escaped", tarfile.GNUTYPE_SPARSE, "")),
        "a huge header": _archive(_plain("escaped"), comment="x" * (1 << 20)),
        "a huge name": _archive(_plain("escaped/" * 2000)),
        "a huge size": _with_size(plain, b"\x80" + b"\x7f" * 11),
        "a size beyond its end": _with_size(plain, b"77777777777\0"),
        "a negative size": _with_size(plain, b"-0000000001\0"),
        "a name with a NUL byte": _archive(_plain("fine"), path="escaped\0"),
        "a file twice": _archive(_plain("escaped"), _plain("./escaped")),
        "a file that is a folder too": _archive(_plain("escaped"), _plain("escaped/x")),
        "too many members": _archive(*(_plain(f"escaped{number}") for number in range(10_001))),
        "its end cut off": plain[: 512 * 3 + 3],
        "nothing in it": b"",
        "other content": b"PK\x03\x04" + bytes(2048),
    }


def _plain(name: str) -> tuple[str, bytes, str]:
    return name, tarfile.REGTYPE, ""


def _archive(*members: tuple[str, bytes, str], **headers: str) -> bytes:
    """Build an archive of a harmless file and these members (name, kind, link target)."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, kind, link in (_plain("harmless"), *members):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, link
            if name != "harmless":
                member.pax_headers = {key.replace("_", "."): value for key, value in headers.items()}
            member.size = len(_CONTENT) if kind == tarfile.REGTYPE else 0
            archive.addfile(member, io.BytesIO(_CONTENT))
    return target.getvalue()


def _with_size(archive: bytes, text: bytes) -> bytes:
    changed, at = bytearray(archive), 1024
    changed[at + 124 : at + 136] = text
    changed[at + 148 : at + 156] = b" " * 8
    changed[at + 148 : at + 156] = b"%06o\0 " % sum(changed[at : at + 512])
    return bytes(changed)


_AT_ONCE_S = 5.0
_ODD_NAMES = ("-n", "--help", "a b\nc", "x" * 255, "\udcff\udcfe", "日本", "'\"$(id)`;", "trailing ")


@check(93, "Links, linked parents, `..` and magic links lead to the sandbox's files, never to the host's.")
async def links_are_resolved_inside(bench: Bench) -> None:
    with host_file() as (path, secret):
        await bench.sandbox.exec(["ln", "-s", str(path), "link"])
        await bench.sandbox.exec(["ln", "-s", str(path.parent), "folder"])
        await bench.sandbox.exec(["ln", "-s", "/proc/1/root", "root"])
        for attempt in ("link", f"folder/{path.name}", f"../..{path}", f"/proc/self/root{path}",
                        f"/proc/1/root{path}", f"root{path}", f"/proc/1/cwd{path}"):  # fmt: skip
            try:
                found = await bench.sandbox.read_file(attempt)
            except OSError:
                continue
            holds(f"{attempt} is not the host's file", found != secret)
    await bench.sandbox.exec("echo in >target; ln -s target inner; mkdir d; ln -s ../target d/up")
    for inner in ("inner", "d/up", "d/../inner"):
        equal(f"content of {inner}", await bench.sandbox.read_file(inner), b"in\n")


@check(94, "FIFOs, sockets and devices are errors at once, for reading and for writing.")
async def special_files_are_an_error_at_once(bench: Bench) -> None:
    await bench.sandbox.exec("mkfifo fifo")
    made = ["fifo"]
    if bench.gives("unix_sockets"):
        await bench.python("import socket; socket.socket(socket.AF_UNIX).bind('socket')")
        made.append("socket")
    equal("files", (await bench.sandbox.exec("ls")).text().split(), made)
    for path in (*made, "/dev/zero", "/dev/null"):
        with raises(OSError, what=f"reading {path}"):
            await asyncio.wait_for(bench.sandbox.read_file(path), _AT_ONCE_S)
        with raises(OSError, what=f"writing {path}"):
            await asyncio.wait_for(bench.sandbox.write_file(path, b"x"), _AT_ONCE_S)


@check(95, "Files of /proc and files that grow while they are read come back bounded or not at all.")
async def endless_files_are_bounded(bench: Bench) -> None:
    for path in ("/proc/self/mem", "/proc/self/pagemap", "/proc/kmsg"):
        with raises(OSError, what=f"reading {path}"):
            await asyncio.wait_for(bench.sandbox.read_file(path, max_bytes=1000), _AT_ONCE_S)
    holds("a small file of /proc is read", b"Name:" in await bench.sandbox.read_file("/proc/self/status"))
    await bench.sandbox.exec(
        "setsid sh -c 'while :; do echo more; sleep 0.001; done' >grow 2>&1 </dev/null &"
    )
    for _ in range(20):
        try:
            data = await asyncio.wait_for(bench.sandbox.read_file("grow", max_bytes=2000), _AT_ONCE_S)
        except OSError:
            return
        holds("no more than asked for", len(data) <= 2000)
        await asyncio.sleep(0.05)
    await bench.sandbox.exec("head -c 3000 /dev/zero >>grow")
    with raises(OSError, what="reading the grown file"):
        await bench.sandbox.read_file("grow", max_bytes=2000)


@check(96, "Writing over a link changes what it leads to inside, or fails; the host's file stays.")
async def a_write_over_a_link_does_not_escape(bench: Bench) -> None:
    with host_file() as (path, secret):
        await bench.sandbox.exec(["ln", "-s", str(path), "link"])
        await bench.sandbox.exec(["ln", "-s", str(path.parent), "folder"])
        for attempt in ("link", f"folder/{path.name}", f"/proc/1/root{path}"):
            try:
                await bench.sandbox.write_file(attempt, b"changed")
            except OSError:
                continue
        equal("the host's file", path.read_bytes(), secret)
    await bench.sandbox.exec("echo old >target; ln -s target inner")
    await bench.sandbox.write_file("inner", b"new")
    equal("what the link leads to", await bench.sandbox.read_file("target"), b"new")


@check(97, "Archives with `..`, links, devices or huge headers are rejected whole, and never returned.")
async def hostile_archives_are_rejected(bench: Bench) -> None:
    outside = f"{posixpath.dirname(bench.sandbox.workdir.rstrip('/')) or '/'}/escaped"
    for problem, archive in hostile_archives().items():
        with raises(OSError, what=f"putting an archive with {problem}"):
            await bench.sandbox.put_archive(archive, "in")
        left = await bench.sandbox.exec(f"find in ! -type d; ls -d escaped {outside} /tmp/escaped 2>&-")
        equal(f"files after {problem}", left.stdout, b"")
    await bench.sandbox.exec("mkdir -p in out/deep; ln -s /tmp in/link; ln -s /etc/passwd out/link")
    with raises(OSError, what="putting a file through a link"):
        await bench.sandbox.put_archive(pack({"link/escaped": ArchivedFile(data=b"x")}), "in")
    equal("the link leads to", (await bench.sandbox.exec("ls /tmp")).stdout, b"")
    await bench.sandbox.exec(
        "cd out; ln -s . loop; mkfifo fifo; echo x >deep/file; ln deep/file hard; ln -s .. deep/up"
    )
    files = unpack(await bench.sandbox.get_archive("out"))
    equal(
        "what comes out",
        {path: file.data for path, file in files.items()},
        {"deep/file": b"x\n", "hard": b"x\n"},
    )
    await bench.sandbox.exec("truncate -s 100M out/sparse")
    with raises(OSError, what="getting 100 MB"):
        await asyncio.wait_for(bench.sandbox.get_archive("out"), _AT_ONCE_S)


@check(98, "CRLF, a lone CR and a missing last newline stay.")
async def line_ends_are_preserved(bench: Bench) -> None:
    data = b"a\r\nb\rc\n\r\nd"
    await bench.sandbox.write_file("file", data)
    equal("content", await bench.sandbox.read_file("file"), data)
    equal("output", (await bench.sandbox.exec("cat file")).stdout, data)


@check(99, "A written file is there for the next command and a command's file for the next read.")
async def files_and_commands_see_the_same(bench: Bench) -> None:
    shared = ("/tmp", "/dev/shm") if bench.gives("own_tmp") else (await bench.temporary(),)
    for folder in (bench.sandbox.workdir, *shared):
        await bench.sandbox.write_file(f"{folder}/in", b"1")
        equal(
            f"in {folder}", (await bench.sandbox.shell(f"cat {folder}/in; echo 2 >{folder}/out")).stdout, b"1"
        )
        equal(f"from {folder}", await bench.sandbox.read_file(f"{folder}/out"), b"2\n")


@check(100, "A written file belongs to whoever commands run as, with the mode asked for, and can be changed.")
async def files_belong_to_the_user_with_their_mode(bench: Bench) -> None:
    await bench.sandbox.write_file("deep/tool", b"#!/bin/sh\necho ran\n", mode=0o750)
    await bench.sandbox.write_file("plain", b"")
    result = await bench.sandbox.exec("stat -c '%u %a' deep/tool plain; id -u; deep/tool; rm -r deep plain")
    first, second, uid, ran = result.text().splitlines()
    equal("owners and modes", (first, second), (f"{uid} 750", f"{uid} 644"))
    equal("running and removing", (ran, result.exit_code), ("ran", 0))


@check(101, "Newlines, dashes, quotes, 255 bytes and names that are not UTF-8 are only names.")
async def odd_names_work(bench: Bench) -> None:
    for name in _ODD_NAMES:
        await bench.sandbox.write_file(name, name.encode("utf-8", "surrogateescape"))
    for name in _ODD_NAMES:
        content = name.encode("utf-8", "surrogateescape")
        equal("content", await bench.sandbox.read_file(name), content)
    seen = await bench.sandbox.exec("ls -A | wc -l; cat ./-n")
    equal("as a command sees it", seen.text().split(), [str(len(_ODD_NAMES) + 1), "-n"])


@check(102, "A failed or cancelled write leaves only the old file.", memory_mb=192, disk_mb=32, file_mb=48)
async def a_failed_write_leaves_the_old_content(bench: Bench) -> None:
    old = b"o" * 1000
    await bench.sandbox.write_file("kept", old)
    await bench.sandbox.exec("head -c 20000000 /dev/zero >filler")
    if bench.gives("disk_mb"):
        with raises(OSError, what="writing 16 MB into 12 MB"):
            await bench.sandbox.write_file("kept", b"n" * (16 << 20))
    equal("content after the failure", await bench.sandbox.read_file("kept"), old)
    new = b"n" * (8 << 20)
    for steps in (0, 1, 3, 9):
        writing = asyncio.create_task(bench.sandbox.write_file("kept", new))
        for _ in range(steps):
            await asyncio.sleep(0.001)
        writing.cancel()
        await asyncio.wait({writing})
        left = await bench.sandbox.read_file("kept")
        holds("the file is the old one or the new one", left in (old, new))
    equal("files", (await bench.sandbox.exec("ls -A")).text().split(), ["filler", "kept"])


_WRITER = "(while :; do echo x >>grows; sleep 0.01; done) >/dev/null 2>&1 & until test -s grows; do :; done"
_LEASE = """
import fcntl, os, signal
signal.signal(signal.SIGIO, signal.SIG_IGN)
fcntl.fcntl(os.open("leased", os.O_RDWR), fcntl.F_SETLEASE, fcntl.F_WRLCK)
open("held", "w").close()
signal.pause()
"""
_STORM = """
import os
while True:
    try:
        if os.fork() == 0:
            os.setsid()
            with open("storm", "a") as file: file.write("x")
            if os.fork(): os._exit(0)
    except OSError: pass
"""


@check(133, "Background processes stand still during a pause, in which commands and files work.")
async def a_pause_stops_what_runs_and_ends(bench: Bench) -> None:
    sandbox = bench.sandbox
    await sandbox.shell(_WRITER)
    async with sandbox.paused():
        before = await sandbox.read_file("grows")
        async with sandbox.paused():
            equal("a command", (await sandbox.exec("sleep 0.2; echo on")).stdout, b"on\n")
            equal("a command of the shell", (await sandbox.shell("echo on")).stdout, b"on\n")
        await sandbox.write_file("new", b"new")
        equal("the file", await sandbox.read_file("grows"), before)
    await sandbox.exec(f"until test $(wc -c <grows) -gt {len(before)}; do sleep 0.01; done", timeout_s=10)
    holds("it goes on", len(await sandbox.read_file("grows")) > len(before))


@check(134, "A pause stops processes that fork for ever, too.", needs=("pids",), pids=48)
async def a_fork_bomb_stands_still_in_a_pause(bench: Bench) -> None:
    await bench.sandbox.write_file("storm.py", _STORM.encode())
    await bench.sandbox.exec("(python3 storm.py >/dev/null 2>&1 &); until test -s storm; do :; done")
    async with bench.sandbox.paused():
        before = await bench.sandbox.read_file("storm")
        await bench.sandbox.exec("sleep 0.2")
        equal("what they wrote", await bench.sandbox.read_file("storm"), before)


@check(135, "A file is read although a process holds a lease on it and does not give it back.")
async def a_lease_keeps_nobody_from_reading(bench: Bench) -> None:
    await bench.sandbox.write_file("leased", b"there")
    await bench.sandbox.write_file("lease.py", _LEASE.encode())
    await bench.sandbox.exec(
        "(python3 lease.py &) >/dev/null 2>&1; until test -e held; do :; done", timeout_s=10
    )
    equal("content", await bench.sandbox.read_file("leased"), b"there")
