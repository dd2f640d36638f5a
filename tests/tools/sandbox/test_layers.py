"""Files from one sandbox into another."""

import threading
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.tables import cases
from tests.tools.sandbox.conftest import SMALL
from tools.errors import AgentCausedError, SandboxCreateError
from tools.sandbox import Opening, SandboxLimits
from tools.sandbox.archive import ArchivedFile
from tools.sandbox.base import Layer
from tools.sandbox.inside import tar
from tools.sandbox.layers import digests_of, files_beside, place, plain_files, size_on_disk, take
from tools.sandbox.local.backend import open_local

PLENTY = 32 << 20


@pytest.fixture
async def sandbox():
    async with open_local(SMALL) as opened:
        yield opened


def contents(files):
    return {path: file.data for path, file in files.items()}


@cases(
    ("path", "at"),
    [
        ("a", "a"),
        ("./a//b/../c", "a/c"),
        ("/workspace/a", "a"),
        ("../workspace/a", "a"),
        ("/tmp/a", "/tmp/a"),
        ("../a", "/a"),
        ("/workspaces/a", "/workspaces/a"),
    ],
)
def test_a_place_is_the_same_however_it_is_written(path, at):
    assert place(path, "/workspace") == at


def test_the_size_on_disk_counts_whole_pages_and_folders():
    files = {"a/b/c": ArchivedFile(data=b"x" * 4097), "a/d": ArchivedFile(data=b"")}
    assert size_on_disk(files) == (2 + 1 + 2) * 4096


async def test_a_later_path_wins_over_an_earlier_one(sandbox):
    # Through the link the last path reads another file than the one that has its place.
    await sandbox.exec("mkdir -p a else/a else/b; echo 1 >a/x; echo 2 >else/a/x; ln -s else/b b")
    files = await take(sandbox, ["a", "missing", "b/../a/x"], max_bytes=PLENTY)
    assert contents(files) == {"a/x": b"2\n"}


async def test_nothing_is_taken_where_another_file_or_its_folder_is(sandbox):
    await sandbox.exec("mkdir -p a/b; echo 1 >a/b/c; echo 2 >a/d; echo 3 >a/e")
    files = await take(sandbox, ["a"], max_bytes=PLENTY, beside=["a/b", "a/d/x", "a/f"])
    assert contents(files) == {"a/e": b"3\n"}


async def test_files_are_put_at_their_places_in_batches(sandbox):
    files = {f"large{number}": ArchivedFile(data=bytes([number]) * (6 << 20)) for number in range(4)}
    files["/tmp/tool"] = ArchivedFile(data=b"#!/bin/sh\necho ran\n", mode=0o755)
    await plain_files(files).put_into(sandbox)
    seen = await sandbox.exec(
        "/tmp/tool; for i in 0 1 2 3; do tail -c 1 large$i | od -An -tu1; stat -c %s large$i; done"
    )
    assert seen.text().split() == ["ran"] + [text for number in "0123" for text in (number, str(6 << 20))]


async def test_what_was_put_in_the_way_is_an_error_and_what_was_offered_is_not(sandbox):
    await sandbox.exec("mkdir a /tmp/a")
    files = {path: ArchivedFile(data=b"x") for path in ("/tmp/a", "/tmp/b", "a", "b")}
    with pytest.raises(IsADirectoryError):
        await plain_files(files).put_into(sandbox)
    await plain_files(files, by_agent=True).put_into(sandbox)
    assert (await sandbox.exec("cat /tmp/b; find . /tmp -type d")).text() == "x.\n./a\n/tmp\n/tmp/a\n"


async def test_an_archive_is_read_at_most_once_and_beside_the_event_loop(sandbox, monkeypatch):
    used = []

    def watched(name):
        function = getattr(tar, name)

        def watching(*args):
            used.append((name, threading.current_thread() is threading.main_thread()))
            return function(*args)

        return watching

    for name in ("Reader", "header"):
        monkeypatch.setattr(tar, name, watched(name))
    await plain_files({"a/x": ArchivedFile(data=b"x")}).put_into(sandbox)
    await take(sandbox, ["a"], max_bytes=PLENTY)
    assert used == [("header", False), ("Reader", False)]


KNOWN = {
    "same": ArchivedFile(data=b"1" * 5000),
    "d/changed": ArchivedFile(data=b"2"),
    "program": ArchivedFile(data=b"3"),
    "gone": ArchivedFile(data=b"4"),
}


async def found_beside(sandbox, command, max_bytes=PLENTY):
    await plain_files(KNOWN).put_into(sandbox)
    await sandbox.exec(command)
    return await files_beside(sandbox, KNOWN, digests_of(KNOWN), max_bytes=max_bytes)


async def test_files_that_are_as_known_are_not_brought(sandbox):
    command = (
        "echo 5 >new; rm gone; echo 6 >d/changed; chmod +x program; mkdir .git __pycache__; echo 7 >.git/x"
    )
    # Less than the file that is the same.
    found = await found_beside(sandbox, command, max_bytes=9 * 512)
    changed = {"d/changed": b"6\n", "program": b"3", "new": b"5\n"}
    assert contents(found) == {"same": KNOWN["same"].data, **changed}
    assert found["same"] is KNOWN["same"]
    assert found["program"].mode == 0o755


LEASES = """
import fcntl, os, signal, time
signal.signal(signal.SIGIO, signal.SIG_IGN)
ready, taken = os.pipe()
for number in range(180):
    if not os.fork():
        fcntl.fcntl(os.open(f"d/{number}", os.O_RDWR | os.O_CREAT), 1024, 1)
        os.write(taken, b".")
        time.sleep(1000)
for number in range(180): os.read(ready, 1)
"""
SHARED_LEASES = """
import fcntl, os, signal, time
signal.signal(signal.SIGIO, signal.SIG_IGN)
files = [os.open(f"d/{number}", os.O_RDWR | os.O_CREAT) for number in range(9)]
if os.fork():  # takes the leases, and ends; the other process has the files open
    for each in files: fcntl.fcntl(each, 1024, 1)
else:
    time.sleep(1000)
"""


@pytest.mark.parametrize(
    ("program", "count"), [(LEASES, 180), pytest.param(SHARED_LEASES, 0, marks=pytest.mark.soak)]
)
async def test_leases_hold_no_reading_up(program, count):
    async with open_local(replace(SMALL, pids=200)) as one:
        await one.write_file("leases.py", program.encode())
        await one.exec("mkdir d; setsid python3 leases.py > /dev/null 2>&1")
        assert len(await take(one, ["d"], max_bytes=PLENTY)) == count


async def test_a_backend_that_does_not_compare_brings_all(sandbox):
    await plain_files(KNOWN).put_into(sandbox)
    plain = SimpleNamespace(get_archive=sandbox.get_archive)
    assert await files_beside(plain, KNOWN, digests_of(KNOWN), max_bytes=1 << 14) == KNOWN


@pytest.mark.parametrize(
    ("failures", "by_agent", "raised"),
    [(1, True, None), (1, False, None), (2, True, AgentCausedError), (2, False, SandboxCreateError)],
)
async def test_a_sandbox_that_breaks_while_it_is_filled_is_replaced_once_by_a_fresh_one(
    failures, by_agent, raised
):
    opened = []

    @asynccontextmanager
    async def opener(limits, **_):
        opened.append(limits)
        yield len(opened)

    async def fill(_):
        if len(opened) <= failures:
            raise AgentCausedError("cpu_s", cause="sandbox_lost")

    opening = Opening("double", opener, SandboxLimits(), {}).beginning_with(
        Layer(fill=fill, by_agent=by_agent)
    )
    with nullcontext() if raised is None else pytest.raises(raised):
        async with opening as sandbox:
            assert sandbox == 2
    assert len(opened) == 2


@pytest.mark.parametrize(("artefacts", "raised"), [({}, SandboxCreateError), ({"a": b"x"}, AgentCausedError)])
async def test_files_of_an_agent_that_are_none_break_no_sandbox(artefacts, raised):
    @asynccontextmanager
    async def opener(limits, **_):
        raise AgentCausedError("cpu_s", cause="sandbox_lost")
        yield

    brought = plain_files({path: ArchivedFile(data=data) for path, data in artefacts.items()}, by_agent=True)
    with pytest.raises(raised):
        async with Opening("double", opener, SandboxLimits(), {}).beginning_with(brought):
            pass


async def test_what_cannot_be_put_into_a_fresh_sandbox_is_no_file_error_of_its_agents():
    async def fill(sandbox):
        await sandbox.write_file("/proc/1/x", b"")

    with pytest.raises(SandboxCreateError, match="what was prepared cannot be copied"):
        async with Opening("local", open_local, SMALL, {}).beginning_with(Layer(fill=fill)):
            pass
