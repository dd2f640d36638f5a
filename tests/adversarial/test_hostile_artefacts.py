"""Records and artefacts that somebody edited: refused by name, and never a reward."""

import asyncio
import hashlib
import json
import os
import zipfile

import pytest

from environments.record.recorder import artefacts_of, read_groups, with_contents
from tests.environments.keeping_env import recorded, rescored
from tools.errors import ConfigError

SECRET = b"what the record must not bring in"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("kept") / "r.jsonl"
    asyncio.run(recorded(path))
    (file,) = artefacts_of(path).iterdir()
    return path.read_text(), file.name, file.read_bytes()


@pytest.fixture
def path(run, tmp_path):
    line, name, packed = run
    path = tmp_path / "r.jsonl"
    path.write_text(line)
    artefacts_of(path).mkdir()
    (artefacts_of(path) / name).write_bytes(packed)
    return path


def packed_of(path):
    (file,) = artefacts_of(path).iterdir()
    return file


def contents(path):
    with zipfile.ZipFile(packed_of(path)) as packed:
        return {name: packed.read(name) for name in packed.namelist()}


def write_contents(path, contents):
    with zipfile.ZipFile(packed_of(path), "w") as packed:
        for name, data in contents.items():
            packed.writestr(name, data)


def edit(path, change):
    """Lets `change` have every entry of the record's artefacts that has a digest."""
    group = json.loads(path.read_text())
    for trajectory in group["trajectories"]:
        for each in trajectory["artefacts"]:
            if "digest" in each:
                change(each)
    path.write_text(json.dumps(group) + "\n")


async def refused(path):
    with pytest.raises(
        ConfigError, match=r"cannot be rescored: (score_turn|compute_outcome) takes "
    ) as error:
        await rescored(path)
    assert not path.with_name(f"{path.name}.new").exists()
    return str(error.value)


async def test_another_content_under_a_digest_is_refused(path):
    write_contents(path, {name: data[:-1] + b"?" for name, data in contents(path).items()})
    assert "is not beside the record as it names it: SHA-256 '" in await refused(path)


@pytest.mark.parametrize("digest", ["../../etc/passwd", "/etc/passwd", "", "\n", "a" * 9999])
async def test_a_digest_that_is_a_path_leads_nowhere(path, digest):
    edit(path, lambda each: each.update(digest=digest))
    assert "\n" not in await refused(path)


@pytest.mark.parametrize("group_id", ["../stolen", "/tmp/x", "..", "a/b", "\0"])
async def test_a_group_that_is_called_like_a_path_has_no_artefacts(path, group_id):
    group = json.loads(path.read_text())
    (path.parent / "stolen.zip").write_bytes(packed_of(path).read_bytes())
    path.write_text(json.dumps({**group, "group_id": group_id}) + "\n")
    await refused(path)


async def test_contents_in_the_record_itself_are_not_read(path):
    group = json.loads(path.read_text())
    digest = hashlib.sha256(SECRET).hexdigest()
    for trajectory in group["trajectories"]:
        trajectory["contents"] = {digest: SECRET.decode()}
    path.write_text(json.dumps(group) + "\n")
    edit(path, lambda each: each.update(digest=digest))
    await refused(path)


async def test_a_file_in_the_place_of_a_folder_is_refused_and_never_an_empty_folder(path):
    plain = hashlib.sha256(SECRET).hexdigest()
    write_contents(path, {**contents(path), plain: SECRET})
    edit(path, lambda each: each.update(digest=plain, size=len(SECRET)))
    assert "which is not a folder beside the record" in await refused(path)


@pytest.mark.parametrize("damage", [lambda data: data[:50], lambda data: b"PK" + data[2:-30]])
async def test_a_damaged_or_missing_file_is_refused(path, damage):
    packed_of(path).write_bytes(damage(packed_of(path).read_bytes()))
    await refused(path)
    packed_of(path).unlink()
    await refused(path)


async def test_what_unpacks_to_more_than_the_record_names_is_not_unpacked(path):
    bomb = bytes(50 << 20)
    digest = hashlib.sha256(bomb).hexdigest()
    with zipfile.ZipFile(packed_of(path), "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr(digest, bomb)
    edit(path, lambda each: each.update(digest=digest))
    (group,) = read_groups(path)
    assert not any(t.contents for t in with_contents(group, path).group.trajectories)


def test_a_fifo_in_the_place_of_artefacts_is_not_waited_for(path):
    packed = packed_of(path)
    packed.unlink()
    os.mkfifo(packed)
    assert not any(t.contents for t in with_contents(*read_groups(path), path).group.trajectories)
