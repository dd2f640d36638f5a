"""Files: resolved inside, never hanging, old content kept when a write fails."""

import contextlib

import pytest


async def test_a_file_comes_back_as_it_was_written(sandbox):
    data = bytes(range(256)) * 4096 + b"\r\n"
    await sandbox.write_file("deep/er/file", data)
    assert await sandbox.read_file("/workspace/deep/er/file") == data


async def test_a_written_file_belongs_to_the_agent_with_its_mode(sandbox):
    await sandbox.write_file("tool.sh", b"#!/bin/sh\necho ran\n", mode=0o755)
    assert (await sandbox.exec(["./tool.sh"])).stdout == b"ran\n"
    assert (await sandbox.exec("stat -c '%U %a' tool.sh")).stdout == b"agent 755\n"


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("missing", FileNotFoundError),
        ("/workspace", IsADirectoryError),
        ("file/below", NotADirectoryError),
        ("locked", PermissionError),
        ("fifo", OSError),
        ("/dev/zero", OSError),
        ("loop", OSError),
        ("large", OSError),
    ],
)
async def test_what_cannot_be_read_is_an_error_at_once(sandbox, path, error):
    await sandbox.exec(
        "echo > file; echo > locked; chmod 0 locked; mkfifo fifo; ln -s loop loop;truncate -s 12M large"
    )
    with pytest.raises(error):
        await sandbox.read_file(path, max_bytes=1 << 20)


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("directory", IsADirectoryError),
        ("/usr/bin/sh", OSError),
        ("/new", OSError),
        ("fifo", OSError),
        ("file/below", NotADirectoryError),
    ],
)
async def test_what_cannot_be_written_is_an_error_at_once(sandbox, path, error):
    await sandbox.exec("mkdir directory; mkfifo fifo; echo > file")
    with pytest.raises(error):
        await sandbox.write_file(path, b"x")


async def test_links_lead_nowhere_outside(sandbox, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    secret.chmod(0o666)
    await sandbox.exec(["ln", "-s", str(secret), "link"])
    await sandbox.exec(["ln", "-s", str(tmp_path), "folder"])
    for path in ("link", "folder/secret", f"../..{secret}", f"/proc/self/root{secret}"):
        with pytest.raises(OSError):  # noqa: PT011  # missing or not allowed, as long as it is not read
            await sandbox.read_file(path)
    with contextlib.suppress(OSError):
        await sandbox.write_file("link", b"changed")
    assert secret.read_text() == "secret"


async def test_a_write_over_a_link_changes_its_target(sandbox):
    await sandbox.exec("echo old > target; ln -s target link")
    await sandbox.write_file("link", b"new")
    assert await sandbox.read_file("target") == b"new"


async def test_a_failed_write_leaves_the_old_content_and_nothing_else(sandbox):
    await sandbox.write_file("kept", b"old")
    await sandbox.exec(
        "head -c 16000000 /dev/zero > a; head -c 16000000 /dev/zero > b; head -c 15000000 /dev/zero > c"
    )
    with pytest.raises(OSError, match="No space"):
        await sandbox.write_file("kept", b"n" * (8 << 20))
    assert await sandbox.read_file("kept") == b"old"
    assert (await sandbox.exec("ls -A")).stdout.split() == [b"a", b"b", b"c", b"kept"]


@pytest.mark.parametrize("name", ["-n", "a b\nc", "x" * 255, "\udcff\udcfe", "日本"])
async def test_odd_names_work(sandbox, name):
    await sandbox.write_file(name, b"x")
    assert await sandbox.read_file(name) == b"x"


async def test_files_of_proc_are_bounded(sandbox):
    with pytest.raises(OSError):  # noqa: PT011  # too large or unreadable, but never for ever
        await sandbox.read_file("/proc/self/mem", max_bytes=1000)
    assert b"Name" in await sandbox.read_file("/proc/self/status")
