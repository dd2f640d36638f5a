"""Logs that no record can be made of: one line that says where and what, exit code 2, and nothing written."""

import gzip
import json
import os

import pytest

from environments.record.sessions import session_file
from tests.environments.record.sessions.logs import call, chat, result, said, user, voted
from tests.tables import cases
from turnwise.cli.main import main

GOOD = voted(1, 0, outcome=1)
IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}


def line(value):
    return json.dumps(value).encode()


REFUSED = {
    "torn": (line(GOOD)[:-9], "not valid JSON"),
    "utf-8": (b'{"messages": "\xff"}', "not UTF-8 text"),
    "nan": (line(voted(1, outcome=float("nan"))), "NaN is not a JSON number"),
    "deep": (b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not valid JSON"),
    "role": (line({"messages": [{"role": "bot", "content": "a"}]}), "messages[0] has the role 'bot'"),
    "no-content": (line({"messages": [{"role": "user", "text": "a"}]}), "messages[0].content is None"),
    "image": (line({"messages": [user([IMAGE])]}), "part of type 'image_url'; only text is taken"),
    "call-is-no-json": (
        line(
            {"conversations": [{"from": "human", "value": "a"}, {"from": "function_call", "value": "look"}]}
        ),
        "not JSON",
    ),
    "assistant-first": (line({"messages": [said("a")]}), "a session begins with what it was asked"),
    "result-without-call": (line(chat(said("a"), result("x"))), "messages[2] answers the call 'x'"),
    "block-order": (
        line(
            chat(
                call("x"), user([{"type": "text", "text": "a"}, {"type": "tool_result", "tool_use_id": "x"}])
            )
        ),
        "messages[2] has a tool_result after other blocks",
    ),
    "vote-in-words": (line(voted("great")), "messages[1].vote is 'great'"),
}


def refused(tmp_path, capfd, *arguments):
    """The one line that a refused import tells; it leaves the folder as it was."""
    before = sorted(path.name for path in tmp_path.iterdir())
    code = main(["import", *map(str, arguments), "--out", str(tmp_path / "record.jsonl")])
    told = capfd.readouterr()
    assert code == 2
    assert told.out == ""
    (text,) = told.err.splitlines()
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    return text


@pytest.fixture
def log(tmp_path):
    def write(content):
        path = tmp_path / "log.jsonl"
        path.write_bytes(content)
        return path

    return write


@cases(("content", "what"), REFUSED.values(), ids=REFUSED)
def test_a_line_that_is_no_session_is_named_with_what_is_wrong(tmp_path, capfd, content, what):
    path = tmp_path / "log.jsonl"
    path.write_bytes(line(GOOD) + b"\n" + content + b"\n")
    text = refused(tmp_path, capfd, path)
    assert "log.jsonl, line 2: " in text
    assert what in text


@pytest.mark.parametrize(
    ("second", "what"),
    [
        (voted(1, id="a"), "the id 'a' is that of line 1, too"),
        (voted(1, item_id="x", opening="other"), "the item_id 'x' is that of line 1, which begins otherwise"),
    ],
    ids=["id", "item_id"],
)
def test_a_name_stands_for_one_thing(tmp_path, capfd, log, second, what):
    content = b"\n".join(map(line, [voted(1, id="a", item_id="x"), second]))
    assert what in refused(tmp_path, capfd, log(content))


def test_a_compressed_file(tmp_path, capfd, log):
    assert "is compressed" in refused(tmp_path, capfd, log(gzip.compress(line(GOOD))))


def test_a_line_without_an_end(tmp_path, capfd, log, monkeypatch):
    monkeypatch.setattr(session_file, "MAX_LINE_BYTES", 1 << 20)
    assert "line 1: over 1 MiB" in refused(tmp_path, capfd, log(b" " * (2 << 20)))


def test_what_is_no_file(tmp_path, capfd):
    os.mkfifo(tmp_path / "pipe")
    assert "not a plain file" in refused(tmp_path, capfd, tmp_path)
    assert "not a plain file" in refused(tmp_path, capfd, tmp_path / "pipe")
    assert "No such file" in refused(tmp_path, capfd, tmp_path / "gone.jsonl")
    assert "read twice: give a file" in refused(tmp_path, capfd, "-")


def test_a_file_that_grows_while_it_is_read_becomes_no_record(tmp_path, capfd, log, monkeypatch):
    path = log(line(GOOD) + b"\n")
    index = session_file.SessionFile.groups

    def grown(self):
        with path.open("ab") as file:
            file.write(line(GOOD) + b"\n")
        return index(self)

    monkeypatch.setattr(session_file.SessionFile, "groups", grown)
    assert "was changed while it was imported" in refused(tmp_path, capfd, path)
