"""Servers whose names of versions are anything: a name is one line, and what is no name is unknown."""

import json

import pytest

from environments.inference.chat_reply import read_reply
from environments.inference.reply_weights import weight_version_of
from environments.lifecycle.weight_versions import WeightVersions
from environments.record.weight_totals import WeightTotals
from environments.testing import group_of
from environments.trajectory import SEVERAL_VERSIONS
from tests.environments.lifecycle.test_weight_versions import met
from tests.environments.record.test_weight_totals import sampled

NAMES = {
    "no-name": None,
    "empty": "",
    "number": 7,
    "float": 7.5,
    "bool-in-a-list": [True],
    "object": {"version": "v1"},
    "lines": "v1\nv2\rv3",
    "terminal": "\x1b[2J\x1b]0;title\x07v1",
    "direction": "\u202ev1",
    "long": "v" * 1_000_000,
    "surrogate": "\ud800",
    "several": SEVERAL_VERSIONS.join("abc"),
    "separators": SEVERAL_VERSIONS * 3,
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


@pytest.mark.parametrize("spans", [None, 3, "v1", {}, [], [[]], [None], [{"version": []}]], ids=repr)
def test_what_is_no_list_of_versions_is_unknown(spans):
    assert weight_version_of({"weight_versions": spans}, None, 3, "v1", [], {"weight_version": {}}) is None


def test_a_name_for_each_completion_makes_all_but_the_newest_old():
    seen = met(*map(str, range(10_000)))
    assert [name for name in map(str, range(10_000)) if seen.too_old([name]) is None] == ["9999"]


def test_separators_alone_are_versions_without_a_name_and_break_nothing():
    seen: WeightVersions = met(SEVERAL_VERSIONS * 2, "")
    assert seen.too_old([""]) is None


def test_totals_of_hostile_names_are_one_line():
    totals = WeightTotals()
    totals.add(sampled(["\x1b[2J" + "x" * 500], ["\n\n"]))
    totals.add(group_of([[1.0]]))
    assert totals.text().isprintable()
    assert len(totals.text()) < 300
