"""Servers whose names of versions are anything: a name is one line, and what is no name is unknown."""

import json

import pytest

from environments.policy.inference.chat_reply import read_reply, read_weight_version
from environments.trajectory import SEVERAL_VERSIONS
from tests.tables import cases

NAMES = {
    "no-name": None,
    "number": 7,
    "object": {"version": "v1"},
    "lines": "v1\nv2\rv3",
    "terminal": "\x1b[2J\x1b]0;title\x07v1",
    "direction": "\u202ev1",
    "long": "v" * 1_000_000,
    "surrogate": "\ud800",
    "several": SEVERAL_VERSIONS.join("abc"),
}
hostile = pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)


@hostile
def test_a_reply_gives_one_short_line_or_nothing(name):
    choice = {"message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
    for told in ({"metadata": {"weight_version": name}}, {}):
        spans = {} if told else {"weight_versions": [{"version": name}, name, None, 3]}
        reply = {"choices": [{**choice, **spans}], **told}
        version = read_reply(json.dumps(reply).encode(), "p").weight_version
        assert version is None or (0 < len(version) < 1000 and version.isprintable())


@cases(
    ("one", "other"),
    [
        ("x" * 300 + "1", "x" * 300 + "2"),
        ("v\u202e", "v\u202d"),
        ("a b", "a  b"),
        (f"a{SEVERAL_VERSIONS}b", "a b"),
        ("\ud800", "\ud801"),
    ],
    ids=["long", "unprintable", "spaces", "separator", "surrogates"],
)
def test_versions_of_two_names_stay_two(one, other):
    names = {read_weight_version({}, {"weight_version": each}) for each in (one, other)}
    assert len(names) == 2
    assert not any(SEVERAL_VERSIONS in name for name in names)
