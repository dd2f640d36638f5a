"""Folders in and out of a sandbox as one archive, in every tier."""

import errno

import pytest

from tests.tables import across, cases
from tests.tools.sandbox.conftest import EACH_TIER, SMALL
from tools.sandbox import archive
from tools.sandbox.archive import ArchivedFile, pack, unpack
from tools.sandbox.base import SandboxRecord
from tools.sandbox.conformance.file_safety import hostile_archives
from tools.sandbox.host.supervised import SupervisedSandbox
from tools.sandbox.inside.messages import Done

ONE = pack({"one": ArchivedFile(data=b"1")})
SIX_MB = b"x" * (6 << 20)
TIERS = ("B", "C", "docker")


@pytest.fixture(params=EACH_TIER)
async def sandbox(request, opening):
    async with opening(request.param) as opened:
        yield opened


async def listed(sandbox, folder="."):
    return sorted((await sandbox.exec(["find", folder, "-mindepth", "1"])).text().splitlines())


async def test_files_go_in_and_come_out_as_they_were(sandbox):
    names = ("a", "b/c/d", "b/e", "-n", "x y\nz", "\udcff", "l" * 200 + "/" + "m" * 200)
    files = {name: ArchivedFile(data=name.encode("utf-8", "surrogateescape") * 99) for name in names}
    files |= {"empty": ArchivedFile(data=b""), "tool": ArchivedFile(data=b"#!/bin/sh\n", mode=0o755)}
    special = files | {"tool": ArchivedFile(data=b"#!/bin/sh\n", mode=0o6755)}
    await sandbox.put_archive(pack(special), "new/folder")
    assert unpack(await sandbox.get_archive("new/folder")) == files
    assert (await sandbox.exec("new/folder/tool")).exit_code == 0


HOSTILE = {name: name for name in hostile_archives()}
OF_EACH_KIND = ("`..`", "an absolute path", "a file behind its own link", "a character device")


@across(HOSTILE, OF_EACH_KIND, "sandbox", TIERS)
async def test_the_inside_too_takes_nothing_hostile(sandbox, case, monkeypatch):
    monkeypatch.setattr(archive, "check", lambda archive: None)
    with pytest.raises(OSError) as raised:  # noqa: PT011  # which one depends on what is wrong
        await sandbox.put_archive(hostile_archives()[case], "in")
    assert raised.value.errno in (errno.EINVAL, errno.ENOTDIR)
    if case != "too many members":
        # Of those that are wrong only together, the first is as harmless as what comes before it.
        assert set(await listed(sandbox, "in")) <= {"in/harmless", "in/escaped"}
        assert (await sandbox.exec("cat in/escaped")).stdout in (b"", b"escaped")
    seen = await sandbox.exec("ls -d escaped /escaped /tmp/escaped 2>&-")
    assert seen.stdout == b""


IN_THE_WAY = {
    "ln -s /tmp in/way": ("way/one", NotADirectoryError),
    "ln -s /tmp/one in/one": ("one", OSError),
    "ln -s ../outside in/way; mkdir outside": ("way/deep/one", NotADirectoryError),
    "mkfifo in/one": ("one", OSError),
    "mkdir in/one": ("one", IsADirectoryError),
    "echo >in/one": ("one/two", NotADirectoryError),
    "chmod 500 in": ("one", PermissionError),
}


@across(
    {setup: (setup, *rest) for setup, rest in IN_THE_WAY.items()}, ["ln -s /tmp in/way"], "sandbox", TIERS
)
async def test_nothing_is_put_through_what_is_in_the_way(sandbox, case):
    setup, name, error = case
    await sandbox.exec(f"mkdir in; {setup}")
    before = await listed(sandbox, ".") + await listed(sandbox, "/tmp")
    with pytest.raises(error, match=f"in/{name}"):
        await sandbox.put_archive(pack({name: ArchivedFile(data=b"new")}), "in")
    assert await listed(sandbox, ".") + await listed(sandbox, "/tmp") == before


async def test_a_full_workspace_is_said_with_the_member_and_leaves_whole_files(sandbox):
    if sandbox.record.tier == "C":
        pytest.skip("a workspace on the host's disk is watched: it is over its bound before that is seen")
    await sandbox.exec("for i in 1 2 3; do head -c 14000000 /dev/zero >$i; done")
    files = {name: ArchivedFile(data=SIX_MB) for name in ("a", "b", "c")}
    with pytest.raises(OSError, match=r"No space.*\./b'"):
        await sandbox.put_archive(pack(files))
    assert await listed(sandbox) == ["./1", "./2", "./3", "./a"]
    assert await sandbox.read_file("a") == SIX_MB


async def test_more_than_the_workspace_is_refused_before_it_is_sent(sandbox):
    with pytest.raises(OSError, match="No space"):
        await sandbox.put_archive(pack({"a": ArchivedFile(data=bytes(49 << 20))}))


async def test_links_and_special_files_never_come_out(sandbox):
    await sandbox.exec(
        "mkdir out; cd out; echo x >file; ln file hard; ln -s file soft; ln -s /etc/passwd far; "
        "ln -s / root; ln -s . loop; ln -s gone dangling; mkfifo fifo; mkdir -p empty; "
        "python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('socket')\"; mknod device c 1 3"
    )
    files = unpack(await sandbox.get_archive("out"))
    assert files == {"file": ArchivedFile(data=b"x\n"), "hard": ArchivedFile(data=b"x\n")}


NO_PACKING = {
    "": FileNotFoundError,
    "echo >out": NotADirectoryError,
    "mkfifo out": NotADirectoryError,
    "mkdir -p out/deep; echo >out/deep/locked; chmod 0 out/deep/locked": PermissionError,
    "mkdir -p out/locked; chmod 0 out/locked": PermissionError,
    "mkdir out; truncate -s 12M out/large": OSError,
    "mkdir out; cd out; for i in $(seq 120); do mkdir d; cd d; done": OSError,
}


@across({setup: (setup, error) for setup, error in NO_PACKING.items()}, ["mkfifo out"], "sandbox", TIERS)
async def test_a_folder_that_cannot_be_packed_is_an_error(sandbox, case):
    setup, error = case
    await sandbox.exec(setup)
    with pytest.raises(error, match="out"):
        await sandbox.get_archive("out")


async def test_the_limit_of_an_archive_counts_everything_in_it(sandbox):
    await sandbox.exec("mkdir out; echo x >out/a; echo y >out/b")
    size = len(await sandbox.get_archive("out"))
    assert len(await sandbox.get_archive("out", max_bytes=size)) == size
    with pytest.raises(OSError, match=r"too large.*out/b"):
        await sandbox.get_archive("out", max_bytes=size - 1)


class Forged:
    """The way to a supervisor that the agent replaced by its own."""

    def __init__(self, archive):
        self.archive = archive

    async def request(self, message):
        return Done(0, self.archive, b"", len(self.archive), 0, False, False, False, 0.1)


@cases("problem", hostile_archives())
async def test_a_hostile_archive_that_comes_out_is_refused(problem):
    record = SandboxRecord(backend="forged", tier="-", limits=SMALL, enforced=())
    sandbox = SupervisedSandbox(Forged(hostile_archives()[problem]), "/workspace", record)
    with pytest.raises(OSError, match="not taken from an archive"):
        await sandbox.get_archive("out")
