"""What stands in a record cannot drive the terminal that it is shown in."""

import os
import pty
import re
import subprocess
import sys
import unicodedata

import pytest
from click.testing import CliRunner

from environments.record.group_line import encode_group
from tests.environments.record import any_group
from turnwise.cli.view import command

ATTACKS = {
    "clear": "\x1b[2J\x1b[H",
    "link": "\x1b]8;;http://evil\x1b\\click\x1b]8;;\x1b\\",
    "clipboard": "\x1b]52;c;cm0gLXJm\x07",
    "overwrite": "reward 1.0\rreward 9.0\x08\x08\x7f",
    "bidi": "a\u202eb\u2066c\u2069\u200f\u061c",
    "unseen": "a\u200b\u200d\ufeff\U000e0041\u00ad",
    "marks": "a" + "\u0301" * 500,
    "markup": "[bold red]x[/] :smile: [link=http://evil]y[/link]",
}
SGR = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture
def record(tmp_path, monkeypatch):
    """A record in which every free text is an attack."""

    def record(text):
        monkeypatch.setattr(any_group, "TEXTS", [text])
        groups = [any_group.Draw(seed).credited() for seed in range(6)]
        path = tmp_path / "record.jsonl"
        path.write_bytes(b"".join(map(encode_group, groups)))
        return path

    return record


def unsafe(text):
    return {
        each
        for each in text
        if each != "\n" and unicodedata.category(each) in ("Cc", "Cf", "Co", "Cn", "Zl", "Zp")
    }


def show(*arguments):
    given = [*map(str, arguments), "--text"]
    return CliRunner().invoke(command, given, catch_exceptions=False).stdout


@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_but_text_is_printed(record, attack):
    path = record(ATTACKS[attack])
    for printed in (show(path), show(path, "--item", ATTACKS[attack])):
        assert len(printed) > 100
        assert unsafe(printed) == set()


def test_markup_stays_text(record):
    assert "[bold red]x[/] :smile: [link=http://evil]y[/link]" in show(record(ATTACKS["markup"]))


def test_a_terminal_gets_colours_and_nothing_else(record):
    path = record(ATTACKS["link"] + ATTACKS["clipboard"] + ATTACKS["bidi"])
    shown, ours = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "turnwise", "view", str(path), "--text"],
        stdin=ours,
        stdout=ours,
        env={**os.environ, "PAGER": "cat", "TERM": "xterm-256color"},
    ) as process:
        os.close(ours)
        printed = _all_of(shown)
        assert process.wait() == 0
    assert unsafe(SGR.sub("", printed).replace("\r\n", "\n")) == set()


def _all_of(terminal):
    pieces = []
    try:
        while piece := os.read(terminal, 65536):
            pieces.append(piece)
    except OSError:  # the other end is closed
        pass
    finally:
        os.close(terminal)
    return b"".join(pieces).decode()
