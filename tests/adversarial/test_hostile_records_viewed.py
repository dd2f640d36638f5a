"""Records that would break out of their page, or keep it from being made."""

import re
from dataclasses import replace

import orjson
import pytest

from environments.testing import group_of
from environments.trajectory import Failure, JudgeCall, Message
from tests.environments.record.any_group import Draw
from tests.tables import cases
from tests.turnwise.viewer.pages import content, page, recorded
from turnwise.cli.main import main
from turnwise.viewer.record_page import IndexBuilder

HOSTILE = "</script><script>alert(1)</script><!--\"'>&amp;\u2028\x00\u202e\U0001f600<style>"
GROUP = group_of([[1.0, 2.0], [0.0]])


def everywhere(text):
    """A group that says it wherever a text can stand."""
    call = JudgeCall(
        hook=text, turn=0, model=text, messages=(Message(role="user", content=text),), answer=text
    )
    failure = Failure(sibling=9, stop_reason=None, error=text, traceback=text, turns=0, where=text)
    trajectory = GROUP.trajectories[0]
    turn = replace(
        trajectory.turns[0],
        message=Message(role="assistant", content=text, reasoning=text),
        replies=(Message(role="user", content=text),),
        anchor=text,
        finish_reason=text,
        weight_version=text,
        sampling={text: text},
        fork=text,
    )
    said = replace(
        trajectory,
        turns=(turn, replace(trajectory.turns[1], anchor=text)),
        judge_calls=(call,),
        end_reason=text,
        stale=text,
        metrics={text: 1.0},
    )
    return replace(
        GROUP,
        trajectories=(said, GROUP.trajectories[1]),
        failures=(failure,),
        item={text: text},
        judge_calls=(call,),
    )


def test_no_text_gets_out_of_its_block(tmp_path):
    plain, hostile = (
        recorded(tmp_path / f"{name}.jsonl", everywhere(text)) for name, text in (("a", "x"), ("b", HOSTILE))
    )
    page(plain)
    page(hostile)

    around = [
        re.sub(r'(id="block-[\w.]+">)[^<]*', r"\1", path.with_suffix(".html").read_text())
        for path in (plain, hostile)
    ]

    assert around[0].replace("a.jsonl", "") == around[1].replace("b.jsonl", "")


@pytest.mark.parametrize(
    "name", ["</title><script>alert(1)</script>", "a\"b'c&lt;", "-->", "\udcff"], ids=ascii
)
def test_the_name_of_a_record_is_text(tmp_path, name):
    folder = tmp_path / "runs" / "toy" / name.replace("/", "%")
    folder.mkdir(parents=True)
    recorded(folder / "record.jsonl", GROUP)

    assert main(["view", str(folder)]) == 0

    text = (folder / "view.html").read_text()
    assert text.count("<title>") == text.count("</title>") == 1
    assert "<script>alert" not in text


@cases("seed", range(20))
def test_any_group_that_a_record_may_hold_has_a_page(seed):
    blocks = {}
    credited = Draw(seed).credited()
    builder = IndexBuilder(title="t", source="s", content=content())

    builder.add(credited, 1, blocks.__setitem__)

    index = builder.index(cut=[], live=False)
    named = [name for group in index["groups"] for rollout in group["rollouts"] for name in rollout["blocks"]]
    assert {*named, "g1"} == set(blocks)
    assert orjson.dumps([index, blocks])
