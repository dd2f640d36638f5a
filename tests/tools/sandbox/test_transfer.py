"""Files from one sandbox into another."""

import pytest

from tests.tools.sandbox.conftest import SMALL
from tools.sandbox.archive import ArchivedFile
from tools.sandbox.local import open_local
from tools.sandbox.transfer import place, put, size_on_disk, take

PLENTY = 32 << 20


@pytest.fixture
async def sandbox():
    async with open_local(SMALL) as opened:
        yield opened


def contents(files):
    return {path: file.data for path, file in files.items()}


@pytest.mark.parametrize(
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


async def test_what_does_not_fit_any_more_is_not_there(sandbox):
    await sandbox.exec("mkdir a; head -c 9000 /dev/zero >a/x; echo 1 >b; echo 2 >c")
    assert set(await take(sandbox, ["b", "a", "c"], max_bytes=4 * 4096)) == {"b", "c"}


async def test_files_are_put_at_their_places_in_batches(sandbox):
    files = {f"large{number}": ArchivedFile(data=bytes([number]) * (6 << 20)) for number in range(4)}
    files["/tmp/tool"] = ArchivedFile(data=b"#!/bin/sh\necho ran\n", mode=0o755)
    await put(sandbox, files)
    seen = await sandbox.exec(
        "/tmp/tool; for i in 0 1 2 3; do tail -c 1 large$i | od -An -tu1; stat -c %s large$i; done"
    )
    assert seen.text().split() == ["ran"] + [text for number in "0123" for text in (number, str(6 << 20))]
