"""A line of the record: what is read is equal to what was written."""

import json
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.record.group_line import decode_group, encode_group, parse_head, parse_line, with_origin
from environments.record.recorder import read_groups
from environments.testing import group_of
from environments.trajectory import Kept, Message, Span, TokenRow, TurnClock
from tests.environments.record.any_group import Draw
from tests.environments.record.recorded import TWO, credited
from tests.tables import cases
from tools.calls import ToolCall, ToolSpec
from tools.errors import RecordError

GOLDEN = Path(__file__).with_name("golden.jsonl")
HERE = Path("r.jsonl")
OF_THE_GROUP = (
    "schema", "item_id", "epoch", "status", "estimator", "estimator_params", "fingerprint", "origin",
    "item_hash",
)  # fmt: skip


def again(written):
    return decode_group(encode_group(written), HERE, 1)


def fields_of(written):
    return orjson.loads(encode_group(written))


def with_turn(**changes):
    """`TWO`, the first turn of its first trajectory changed."""
    first, *others = TWO.trajectories
    turns = (replace(first.turns[0], **changes), *first.turns[1:])
    return replace(TWO, trajectories=(replace(first, turns=turns), *others))


@given(st.integers(0, 2**32))
@settings(max_examples=200, deadline=None)
def test_every_field_of_a_group_comes_back_equal(seed):
    written = Draw(seed).credited()
    assert again(written) == written


@given(st.integers(0, 2**32), st.booleans())
@settings(max_examples=100, deadline=None)
def test_the_head_of_a_line_has_what_the_line_says_of_its_group(seed, has_origin):
    line = encode_group(Draw(seed).credited())
    line = with_origin(line, {"env": "toy"}) if has_origin else line
    fields = parse_line(line, HERE, 1)
    head = parse_head(line, HERE, 1)
    assert {name: fields.get(name) for name in OF_THE_GROUP} == {
        name: head.get(name) for name in OF_THE_GROUP
    }


@pytest.mark.parametrize("item", [{"a": 1, "tokens": [1]}, {"a": ',"tokens":'}, {"a": 1, "origin": {"b": 1}}])
def test_an_item_may_have_fields_that_a_line_has(item):
    line = encode_group(credited(replace(TWO, item=item)))
    assert parse_head(line, HERE, 1)["item"] == item
    assert "origin" not in parse_head(line, HERE, 1)


def test_the_head_of_a_line_that_something_else_wrote_anew_is_read_too():
    fields = parse_line(encode_group(credited(TWO)), HERE, 1)
    other = json.dumps(fields, sort_keys=True).encode()
    assert parse_head(other, HERE, 1)["item_id"] == fields["item_id"]


def test_scores_are_a_list_per_trajectory_with_turn_rewards_and_else_scalars():
    assert fields_of(credited(TWO))["scores"] == [[1.0, None], [0.0]]
    assert fields_of(credited(group_of([[None, 0.0]])))["scores"] == [[None, 0.0]]
    group = group_of(None, outcomes=[1.0, 0.25], lengths=[[1], [1, 1]])
    assert fields_of(credited(group))["scores"] == [1.0, 0.25]


REPLY = Message(role="assistant", content="hi")


def test_a_text_stands_once_in_a_line_and_turns_name_it_by_its_index():
    reply = Message(role="user", content="a reply")
    written = credited(with_turn(replies=(reply,), message=replace(REPLY, content="an answer")))
    line = encode_group(written)
    assert line.count(b"a reply") == line.count(b"an answer") == 1
    turns = fields_of(written)["trajectories"][0]["turns"]
    assert [turn["message"] for turn in turns] == [1, 4]
    assert (turns[0]["tool_results"][0]["message"], turns[0]["replies"]) == (2, [3])


def test_what_a_parser_made_of_calls_stands_beside_the_turn():
    good, bad = (
        ToolCall(id="a", name="t", arguments="{}"),
        ToolCall(id="b", name="", arguments="{", status="unclosed_block", span=(3, 9)),
    )
    written = credited(with_turn(message=replace(REPLY, tool_calls=(good, bad))))
    first, second = fields_of(written)["trajectories"][0]["turns"]
    assert first["calls"] == [{"status": "ok", "span": None}, {"status": "unclosed_block", "span": [3, 9]}]
    assert "calls" not in second
    assert again(written) == written


def test_what_only_recorded_agents_have_is_left_out_of_other_lines():
    clock = TurnClock(requested=0, handed_out=1, scored=5)
    written = credited(with_turn(thread=1, clock=clock))

    trajectory, *_ = fields_of(written)["trajectories"]

    first, second = trajectory["turns"]
    assert (first["thread"], first["clock"]) == (1, {"requested": 0, "handed_out": 1, "scored": 5})
    assert not {"thread", "clock"} & set(second)
    assert not {"agent", "other_calls"} & set(trajectory)
    assert again(written) == written


TOOLS = (ToolSpec(name="look", description="Look closely.", parameters={"type": "object"}),)


def test_tools_stand_once_for_all_trajectories_that_had_them():
    first, second = group_of([[1.0], [0.0]]).trajectories
    offered = (
        replace(first, tools=TOOLS),
        replace(second, tools=(*TOOLS, *TOOLS)),
        replace(first, tools=TOOLS),
    )
    written = credited(replace(TWO, trajectories=(*offered, second)))
    fields = fields_of(written)
    assert [each.get("tools") for each in fields["trajectories"]] == [0, 1, 0, None]
    assert [len(tools) for tools in fields["toolsets"]] == [1, 2]
    assert "toolsets" not in fields_of(credited(TWO))
    assert again(written) == written


def test_the_kinds_of_turns_stand_with_the_turns_alone():
    group = group_of([[1.0, None]], kinds=[["act", "summary"]])
    fields = fields_of(credited(group))
    assert [turn["kind"] for turn in fields["trajectories"][0]["turns"]] == ["act", "summary"]
    assert "turn_kinds" not in fields["overrides"][0]


def test_prompts_have_equal_hashes_when_they_are_equal():
    first, second = (each["prompt_hash"] for each in fields_of(credited(TWO))["trajectories"])
    other = replace(TWO.trajectories[0], prompt=(Message(role="user", content="another"),))
    (changed,) = fields_of(credited(replace(TWO, trajectories=(other,))))["trajectories"]
    assert first == second != changed["prompt_hash"]


def forked(*turns):
    """Each turn in a row of its own."""
    first = TWO.trajectories[0]
    own = tuple(replace(turn, span=Span(row=row, start=1, end=2)) for row, turn in enumerate(turns))
    rows = tuple(TokenRow(token_ids=(row, 7), logprobs=None) for row in range(len(turns)))
    return credited(replace(TWO, trajectories=(replace(first, turns=own, rows=rows),)))


def test_a_forked_trajectorys_turns_name_messages_of_its_last_row():
    written = forked(*TWO.trajectories[0].turns)
    fields = fields_of(written)
    assert [len(messages) for messages in fields["messages"]] == [2, 4]
    assert "messages" not in fields["trajectories"][0]
    assert again(written) == written


def test_text_that_the_last_row_no_longer_holds_stands_in_the_trajectory():
    first, second = TWO.trajectories[0].turns
    summary = Message(role="user", content="what happened so far")
    written = forked(first, replace(second, context=(Kept(start=0, end=1), summary)))
    fields = fields_of(written)
    assert [each["content"] for each in fields["messages"][1]] == ["prompt", "what happened so far", "turn 1"]
    assert len(fields["trajectories"][0]["messages"]) == 4
    assert again(written) == written


def test_a_trajectory_without_rows_keeps_its_text():
    (only,) = group_of([[1.0]]).trajectories
    bare = replace(group_of([[1.0]]), trajectories=(replace(only, rows=()),))
    assert again(credited(bare)) == credited(bare)


def turns(*given):
    return lambda fields: fields["trajectories"][0].update(turns=[*given])


def context(*given):
    return lambda fields: fields["trajectories"][0]["turns"][0].update(context=[*given])


def first(**changed):
    return lambda fields: fields["trajectories"][0].update(changed)


def spanned(**changed):
    return lambda fields: fields["trajectories"][0]["turns"][0]["span"].update(changed)


def parts(fields):
    fields["messages"][0][0]["content"] = [{"type": "text", "text": "hi"}]


@cases(
    ("break_line", "says"),
    [
        (lambda fields: fields.pop("policy"), ".*policy"),
        (parts, "content"),
        (lambda fields: fields.update(origin={"env": 1}), "origin: .*'env': 1"),
        (first(advantages=[]), "0 advantages for the 2 turns of sibling 0"),
        (first(rewards={"turns": [0.5], "score": 0.5}), "1 turn rewards for the 2 turns of sibling 0"),
        *((spanned(**wrong), "turn 0 of sibling 0: index 0, Span") for wrong in ({"end": 9**9}, {"row": 1})),
        *((turns(turn), "") for turn in ([], "turn", None, {"anchor": "a"}, {"message": 99})),
        *(
            (context(part), "")
            for part in ({"start": 0}, {"start": "a", "end": 1}, {"content": "x"}, {}, None)
        ),
    ],
)
def test_a_malformed_line_is_named(break_line, says):
    fields = fields_of(credited(with_turn(context=(Kept(start=0, end=1),))))
    break_line(fields)
    with pytest.raises(RecordError, match=rf"line 7: not a turnwise\.group/2 line: {says}"):
        decode_group(orjson.dumps(fields), HERE, 7)


def test_a_golden_line_is_read_with_all_that_it_has():
    *_, last = read_groups(GOLDEN)
    (trajectory,) = last.group.trajectories
    first, second = trajectory.turns
    assert (last.group.item, last.group.item_hash, last.group.fingerprint) == (
        {"q": "2+2"},
        "i" * 32,
        "f" * 16,
    )
    assert first.replies == (Message(role="user", content="go on"),)
    assert (second.kind, second.trained, second.weight_version) == ("summary", False, "step-7")
    assert second.context == (Kept(start=0, end=1), Message(role="user", content="sum up"))
    (called,) = first.message.tool_calls
    assert (called.status, called.span, second.fork) == ("invalid_json", (0, 1), "history")
    assert first.sampling == {"temperature": 0.7, "logprobs_mode": "processed_logprobs"}
    assert trajectory.judge_calls[0].answer == "7/10"
    assert trajectory.rewards.group == 0.25
    assert last.turns_without_peer == 1


def test_golden_lines_are_written_as_they_are():
    assert b"".join(map(encode_group, read_groups(GOLDEN))) == GOLDEN.read_bytes()
