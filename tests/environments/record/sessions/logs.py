"""Logged sessions for tests: written, imported by the real command, read back."""

import json

from click.testing import CliRunner

from environments.record.recorder import read_groups
from turnwise.cli.import_sessions import command


def user(text):
    return {"role": "user", "content": text}


def said(text, vote=None, **fields):
    return {"role": "assistant", "content": text, "vote": vote, **fields}


def call(*ids, **fields):
    calls = [
        {"id": each, "type": "function", "function": {"name": "look", "arguments": "{}"}} for each in ids
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls, **fields}


def result(call_id, text="ok"):
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def chat(*messages, opening="hi", **fields):
    return {"messages": [user(opening), *messages], **fields}


def voted(*votes, opening="hi", outcome=None, **fields):
    """A session of one turn for each vote."""
    spoken = [each for vote in votes for each in (said(f"rated {vote}", vote), user("b"))]
    return chat(*spoken, opening=opening, outcome=outcome, **fields)


def write(folder, *sessions, name="sessions.jsonl"):
    path = folder / name
    path.write_text("".join(json.dumps(each) + "\n" for each in sessions))
    return path


def run(path, *arguments):
    out = path.parent / "record.jsonl"
    return CliRunner().invoke(
        command, [str(path), "--out", str(out), *map(str, arguments)], catch_exceptions=False
    )


def imported(folder, *sessions, arguments=()):
    done = run(write(folder, *sessions), *arguments)
    assert done.exit_code in (0, None), done.output
    return list(read_groups(folder / "record.jsonl"))
