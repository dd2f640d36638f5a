"""What Atropos reads rollouts with reads ours: its own functions, on a record and on an export."""

import html
from dataclasses import replace

import pytest
from atroposlib.frontend.jsonl2html import generate_html

from environments.record.group_line import encode_group
from environments.testing import group_of
from environments.trajectory import CreditedGroup, Message


def credited(group, **fields):
    advantages = tuple((0.5,) * len(each.turns) for each in group.trajectories)
    return CreditedGroup(group=group, advantages=advantages, policy="p", estimator="e", **fields)


def said(group, text):
    """The group with a prompt that can be found."""
    prompt = (Message(role="user", content=text),)
    trajectories = tuple(replace(each, prompt=prompt) for each in group.trajectories)
    return replace(group, trajectories=trajectories)


TURNS = credited(said(group_of([[1.0, None], [0.25]]), "with turn rewards"))
SCALAR = credited(said(group_of(None, outcomes=[1.5, -2.0], lengths=[[1], [1]]), "with scalar rewards"))
LOST = credited(replace(group_of([[1.0]]), trajectories=()), status="failed", reason="it broke")


@pytest.fixture
def page(tmp_path, capsys):
    """The page that Atropos makes of a record, and what it warns of."""

    def page(*groups):
        record = tmp_path / "record.jsonl"
        record.write_bytes(b"".join(map(encode_group, groups)))
        generate_html(str(record))
        return record.with_suffix(".html").read_text(), capsys.readouterr().err

    return page


def test_every_group_row_message_and_reward_is_on_its_page(page):
    text, warnings = page(TURNS, SCALAR)
    assert (text.count("<summary>Group "), text.count('class="item '), warnings) == (2, 4, "")
    assert text.count("with turn rewards") == text.count("with scalar rewards") == 2
    for score in ([1.0, None], [0.25], 1.5, -2.0):
        assert f"</strong> {html.escape(str(score))}</p>" in text


def test_a_group_without_rollouts_is_passed_over(page):
    text, warnings = page(LOST, TURNS)
    assert (text.count("<summary>Group "), warnings.count("Warning")) == (1, 1)
