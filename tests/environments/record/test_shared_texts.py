"""What repeats in a line stands once, whoever says it again, and comes back equal."""

import copy
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.record import shared_texts
from environments.record.group_line import decode_group, encode_group
from environments.testing import group_of
from environments.trajectory import Failure, JudgeCall, Kept, Message, Span, TokenRow
from tests.environments.record.any_group import Draw
from tests.environments.record.recorded import TWO, credited
from tools.errors import RecordError

HERE = Path("r.jsonl")
LONG = "a rubric of many words, " * 20


def asked(*contents):
    messages = tuple(Message(role="user", content=content) for content in contents)
    return JudgeCall(hook="score_turn", model="judge", messages=messages, answer="7/10")


def judged(*calls):
    """`TWO`, the calls spread over its trajectories."""
    first, second = TWO.trajectories
    return credited(
        replace(
            TWO,
            trajectories=(replace(first, judge_calls=calls[::2]), replace(second, user_calls=calls[1::2])),
        )
    )


def condensed():
    """A trajectory of one row, whose last turn saw a summary: nowhere does all of it stand."""
    (only,) = group_of([[0.0] * 4]).trajectories
    turns = tuple(
        replace(turn, message=replace(turn.message, content=f"turn {turn.index}: {LONG}"))
        for turn in only.turns
    )
    summary = Message(role="user", content="what happened so far")
    turns = (*turns[:-1], replace(turns[-1], context=(Kept(start=0, end=1), summary)))
    rows = (only.rows[0], TokenRow(token_ids=(1, 2), logprobs=None))
    last = replace(turns[-1], span=Span(row=1, start=1, end=2))
    return credited(replace(TWO, trajectories=(replace(only, turns=(*turns[:-1], last), rows=rows),)))


def again(written):
    return decode_group(encode_group(written), HERE, 1)


@given(st.integers(0, 2**32), st.sampled_from([0, 1, 60]))
@settings(max_examples=150, deadline=None)
def test_every_field_comes_back_equal_however_little_is_shared(seed, least):
    written = Draw(seed).credited()
    before, shared_texts.MIN_REPEATED_BYTES = shared_texts.MIN_REPEATED_BYTES, least
    try:
        assert again(written) == written
    finally:
        shared_texts.MIN_REPEATED_BYTES = before


def test_what_judges_are_asked_again_and_again_stands_once():
    written = judged(*(asked(LONG, f"answer {index}") for index in range(6)))
    assert encode_group(written).count(LONG.encode()) == 1
    assert again(written) == written


def test_a_growing_conversation_with_a_second_model_is_one_stretch_a_call():
    said = [f"{LONG} {index}" for index in range(5)]
    written = judged(*(asked(*said[: index + 1]) for index in range(5)))
    fields = orjson.loads(encode_group(written))
    references = [call["texts"] for call in fields["trajectories"][0]["judge_calls"]]
    assert references == [[[-1, 0, 1]], [[-1, 0, 3]], [[-1, 0, 5]]]
    assert again(written) == written


def test_what_failures_had_asked_is_shared_as_well():
    failure = Failure(
        sibling=2, stop_reason=None, error="E: x", traceback="", turns=0, judge_calls=(asked(LONG),)
    )
    written = judged(asked(LONG, "once"))
    written = replace(written, group=replace(written.group, failures=(failure,)))
    assert encode_group(written).count(LONG.encode()) == 1
    assert again(written) == written


def test_a_conversation_that_rows_hold_in_parts_refers_to_them():
    written = condensed()
    fields = orjson.loads(encode_group(written))
    assert fields["trajectories"][0]["messages"] is None
    assert len(fields["texts"]) < 3
    assert again(written) == written


def test_the_columns_of_atropos_are_as_they_were(monkeypatch):
    columns = ("tokens", "masks", "scores", "advantages", "messages", "overrides", "inference_logprobs")
    shared = orjson.loads(encode_group(condensed()))
    monkeypatch.setattr(shared_texts, "MIN_REPEATED_BYTES", 10**9)
    plain = orjson.loads(encode_group(condensed()))
    assert "texts" in shared
    assert "texts" not in plain
    assert [shared[name] for name in columns] == [plain[name] for name in columns]


def test_little_is_written_again_where_it_belongs():
    assert b"texts" not in encode_group(judged(asked("short", "a"), asked("short", "b")))


@pytest.mark.parametrize(
    "reference",
    [[-2, 0, 1], [0, 0, 99], [7, 0, 1], [-1, 1, 1], [-1, -1, 1], [-1, 0], "ab", [None, 0, 1]],
    ids=["no_column", "beyond", "no_row", "nothing", "before", "short", "text", "null"],
)
def test_a_reference_to_nothing_is_malformed(reference):
    fields = orjson.loads(encode_group(judged(asked(LONG, "a"), asked(LONG, "b"))))
    fields["trajectories"][0]["judge_calls"][0]["texts"] = [reference]
    with pytest.raises(RecordError, match=r"line 1: not a turnwise.group/2 line"):
        decode_group(orjson.dumps(fields), HERE, 1)


def test_references_that_make_a_short_line_long_are_malformed():
    fields = orjson.loads(encode_group(judged(asked(LONG, "a"), asked(LONG, "b"))))
    call = fields["trajectories"][0]["judge_calls"][0]
    call["texts"] = call["texts"] * 200_000
    with pytest.raises(RecordError, match="more than 100000 messages"):
        decode_group(orjson.dumps(fields), HERE, 1)


def test_a_line_that_writes_everything_out_is_read_as_before(monkeypatch):
    written = judged(asked(LONG, "a"), asked(LONG, "b"))
    shared = copy.copy(again(written))
    monkeypatch.setattr(shared_texts, "MIN_REPEATED_BYTES", 10**9)
    assert again(written) == shared
