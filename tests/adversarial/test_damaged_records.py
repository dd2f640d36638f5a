"""A record with a byte wrong, a torn line or a line twice: all readers refuse it, or take the same groups."""

import asyncio
import gzip
import json
import logging
import math
import random
from contextlib import aclosing

import pytest

from environments.record.group_line import with_crc
from environments.record.record_feed import follow
from environments.record.recorder import Recorder, read_contents, read_groups
from environments.run.process_run import process
from environments.run.rescore_run import rescore
from tests.environments.chat.chat_env import Chat, chat
from tests.environments.write_file import quiet
from tests.turnwise.viewer.pages import content, page
from tools.errors import RecordError
from turnwise import records
from turnwise.cli.main import main
from turnwise.viewer import page_server
from turnwise.viewer.page_server import LiveRecord

LATEST = 60.0
"""Seconds after which a feed that gives nothing more is a defect."""


@pytest.fixture(autouse=True)
def whole_reading(monkeypatch):
    """The live page reads all at once, however long that takes."""
    monkeypatch.setattr(page_server, "_SLICE_S", math.inf)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The bytes of a record of three groups, as `process` writes it."""
    path = tmp_path_factory.mktemp("whole") / "r.jsonl"
    asyncio.run(process(chat(Chat, data_path_to_save_groups=str(path)), quiet()))
    return path.read_bytes()


def resumed(path):
    with Recorder(path) as recorder:
        return recorder.finished


def by_command(*arguments):
    def read(path):
        out = path.with_suffix(".out")
        command, *options = [str(out) if each == "OUT" else each for each in arguments]
        if main([command, str(path), *options]) != 0:
            raise RecordError("exit code 2")
        return out.read_bytes().splitlines()

    return read


def followed(path):
    async def take():
        feed, found = follow(path, after=path.with_suffix(".cursor")), []
        async with aclosing(feed):
            for _ in path.read_bytes().splitlines():
                found.append(await anext(feed))
                if len(found) == len(groups(path)):
                    break
        return found

    return asyncio.run(asyncio.wait_for(take(), LATEST))


def rescored(path):
    asyncio.run(rescore(chat(Chat), path, read_contents(path), path.with_suffix(".new"), quiet()))
    return groups(path.with_suffix(".new"))


def groups(path):
    return list(read_groups(path))


def live(path):
    """The page of a live run names what it could not read, since its run goes on."""
    index = json.loads(gzip.decompress(LiveRecord(path, content, None).index()))
    if any("malformed" in each for each in index["cut"]):
        raise RecordError("it is on the page")
    return index["groups"]


READERS = {
    "resume": resumed,
    "groups": groups,
    "contents": lambda path: read_contents(path).finished,
    "page": lambda path: page(path)["index"]["groups"],
    "live page": live,
    "credit": by_command("credit", "--estimator", "grpo", "--write", "OUT"),
    "export": by_command("export", "--view", "token_advantages", "--out", "OUT"),
    "load": lambda path: {
        (row["item_id"], row["epoch"]) for row in records.load(path, cache_dir=path.parent)
    },
    "follow": followed,
    "rescore": rescored,
}


def outcome(read, folder, data):
    """How many groups a reader takes from a record; or that it refuses it."""
    folder.mkdir()
    (folder / "r.jsonl").write_bytes(data)
    try:
        return len(read(folder / "r.jsonl"))
    except RecordError:
        return "refused"


def damages(data):
    """Twenty records that have one byte less, one more or another one each."""
    chance = random.Random(7)
    for number in range(20):
        at, byte = chance.randrange(len(data) - 1), bytes([chance.randrange(1, 256)])
        if number % 3 == 0:
            yield data[:at] + data[at + 1 :]
        elif number % 3 == 1:
            yield data[:at] + byte + data[at:]
        else:
            yield data[:at] + bytes([data[at] ^ byte[0] or 1]) + data[at + 1 :]


@pytest.mark.parametrize("name", READERS)
def test_of_twenty_records_with_a_wrong_byte_every_reader_refuses_each(whole, tmp_path, name, capsys):
    outcomes = [
        outcome(READERS[name], tmp_path / str(number), data) for number, data in enumerate(damages(whole))
    ]
    assert outcomes == ["refused"] * 20


AT_ITS_ENDS = {
    "its last newline missing": lambda data: data[:-1],
    "a byte behind its end": lambda data: data + b"x",
    "an empty line behind its end": lambda data: data + b"\n",
    "its last brace missing": lambda data: data[:-2] + b"\n",
    "a name of the first CRC misspelt": lambda data: data.replace(b'"crc32"', b'"crc31"', 1),
    "its first line once more": lambda data: data + data.partition(b"\n")[0] + b"\n",
    "a line with a CRC of its own and no group": lambda data: data + with_crc(b"{}\n"),
    "no CRC anywhere": lambda data: b"".join(
        b"%s}\n" % line.rpartition(b',"crc32":')[0] for line in data.splitlines()
    ),
}


@pytest.mark.parametrize("damage", AT_ITS_ENDS.values(), ids=AT_ITS_ENDS)
def test_readers_are_of_one_mind(whole, tmp_path, damage, capsys):
    data = damage(whole)
    # Readers of a run that goes on wait for the end of a last line that has none.
    waiting = () if data.endswith(b"\n") else ("follow", "live page")
    read = {name: each for name, each in READERS.items() if name not in waiting}
    outcomes = {name: outcome(each, tmp_path / name, data) for name, each in read.items()}
    assert len(set(map(str, outcomes.values()))) == 1, outcomes


@pytest.mark.parametrize("name", ["groups", "contents", "load", "credit", "export"])
@pytest.mark.parametrize(("cut", "left"), [(0, 3), (1, 3), (2, 2), (300, 2), (None, 0)], ids=str)
def test_of_a_torn_record_every_reader_takes_the_whole_lines_and_no_other(whole, tmp_path, name, cut, left):
    data = whole[:100] if cut is None else whole[: len(whole) - cut]
    assert outcome(READERS[name], tmp_path / name, data) == left


@pytest.mark.parametrize("name", ["credit", "export"])
def test_what_makes_a_file_of_a_torn_record_says_so(whole, tmp_path, caplog, name):
    assert outcome(READERS[name], tmp_path / name, whole + whole[:100]) == 3
    path = tmp_path / name / "r.jsonl"
    assert caplog.messages == [f"{path}: line 4 is cut short, as by a killed run, and left out"]


def test_a_line_that_stands_twice_is_one_group_and_said(whole, tmp_path, caplog):
    path = tmp_path / "r.jsonl"
    path.write_bytes(whole + whole.splitlines(keepends=True)[1])
    assert len(groups(path)) == 3
    assert caplog.messages == [f"{path}: lines that are equal to an earlier one are left out"]


def test_a_record_without_crc_is_read_and_said_once(whole, tmp_path, caplog):
    path = tmp_path / "r.jsonl"
    path.write_bytes(AT_ITS_ENDS["no CRC anywhere"](whole))
    with caplog.at_level(logging.WARNING):
        assert len(groups(path)) == len(groups(path)) == 3
    assert len(caplog.messages) == 1
    assert "no CRC32" in caplog.messages[0]
