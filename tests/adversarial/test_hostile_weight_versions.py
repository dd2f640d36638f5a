"""Servers whose names of versions are anything: a name is one line, and what is no name is unknown."""

import json

import pytest

from environments.policy.inference.chat_reply import read_reply, weight_version_of
from environments.record.summary import weights_text
from environments.record.totals import EVALUATED, Summary
from environments.testing import group_of
from environments.trajectory import SEVERAL_VERSIONS
from tests.environments.record.test_totals import sampled
from tests.environments.rollout.lifecycle.test_weight_versions import met
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
    names = {weight_version_of({}, {"weight_version": each}) for each in (one, other)}
    assert len(names) == 2
    assert not any(SEVERAL_VERSIONS in name for name in names)


def test_long_names_are_told_apart_where_they_are_shown():
    totals = Summary()
    for step in (1, 2):
        long = [f"/a/very/long/path/of/checkpoints/of/a/run/global_step_{step}"]
        totals.add_rollouts(sampled(long), EVALUATED)
    assert (
        weights_text(totals.values())
        == "2 versions, /a/very/long/path/of…a/run/global_step_1 to /a/very/long/path/of…a/run/global_step_2"
    )


@pytest.mark.parametrize(
    "said",
    [
        {"metadata": {"weight_version": "v9"}},
        {"choices": [{"index": 0, "delta": {}, "weight_versions": [{"version": "v9"}]}]},
        {"choices": [{"index": 0, "delta": {}, "meta_info": {"weight_version": "v9"}}]},
    ],
    ids=["metadata", "vllm", "meta_info"],
)
def test_a_stream_says_its_version_as_a_whole_answer_does(said):
    first = {"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}]}
    stream = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in (first, said)) + "data: [DONE]\n\n"
    assert read_reply(stream.encode(), "p").weight_version == "v9"


@cases("spans", [None, 3, "v1", {}, [], [[]], [None], [{"version": []}]], ids=repr)
def test_what_is_no_list_of_versions_is_unknown(spans):
    assert weight_version_of({"weight_versions": spans}, None, 3, "v1", [], {"weight_version": {}}) is None


def test_a_name_for_each_completion_makes_all_but_the_newest_old():
    seen = met(*map(str, range(1000)))
    assert [name for name in map(str, range(1000)) if seen.too_old([name]) is None] == ["999"]


def test_totals_of_hostile_names_are_one_line():
    totals = Summary()
    totals.add_rollouts(sampled(["\x1b[2J" + "x" * 500], ["\n\n"]), EVALUATED)
    totals.add_rollouts(group_of([[1.0]]), EVALUATED)
    text = weights_text(totals.values())
    assert text.isprintable()
    assert len(text) < 300
