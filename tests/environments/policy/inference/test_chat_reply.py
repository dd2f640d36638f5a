"""A server's reply is read into a typed value in every shape that servers have, or refused in one line."""

import json

import pytest

from environments.policy.inference.chat_reply import ReplyError, call_id, read_reply
from tests.environments.policy.chat_server import answer
from tests.tables import cases


def read(message=None, **more):
    body = answer(message=message, **more)
    return read_reply(json.dumps(body).encode(), "5_1")


def of_choice(**fields):
    """A reply of text alone with these fields in its choice; `None` for one that is left out."""
    body = answer()
    del body["choices"][0]["token_ids"], body["choices"][0]["logprobs"]
    body["choices"][0] = {
        name: value for name, value in (body["choices"][0] | fields).items() if value != ...
    }
    return read_reply(json.dumps(body).encode(), "5_1", max_tokens=77)


CONTENTS = [
    ("text", "hi", "hi", None),
    ("null", None, "", None),
    ("a part", [{"type": "text", "text": "hi"}], "hi", None),
    ("parts", [{"type": "text", "text": "h"}, {"type": "output_text", "text": "i"}], "hi", None),
    ("strings", ["h", "i"], "hi", None),
    ("refusal", [{"type": "refusal", "refusal": "no"}], "no", None),
    (
        "Mistral",
        [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "hi"}],
        "hi",
        "hm",
    ),
    (
        "Anthropic",
        [{"type": "thinking", "thinking": "hm", "signature": "x"}, {"type": "text", "text": "hi"}],
        "hi",
        "hm",
    ),
    (
        "summary",
        [
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
            {"type": "text", "text": "hi"},
        ],
        "hi",
        "hm",
    ),
    ("redacted", [{"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "hi"}], "hi", None),
]


@cases(("content", "text", "reasoning"), [each[1:] for each in CONTENTS], ids=[c[0] for c in CONTENTS])
def test_a_content_of_any_kind_is_text_and_reasoning(content, text, reasoning):
    message = read({"content": content}).message
    assert (message.content, message.reasoning) == (text, reasoning)


@cases(
    "content",
    [3, True, [3], [{"type": "image_url", "image_url": {"url": "x"}}], [{"type": 7}], {"text": "hi"}],
    ids=["number", "bool", "numbers", "image", "type", "object"],
)
def test_a_content_that_is_no_text_is_refused(content):
    with pytest.raises(ReplyError, match="text"):
        read({"content": content})


WRONG = [
    ({"finish_reason": 3}, "finish_reason is 3; text or an object is possible"),
    ({"finish_reason": ["stop"]}, r"finish_reason is \['stop'\]"),
    ({"finish_reason": {"type": 3}}, "finish_reason.type is 3"),
    ({"message": {"content": "3", "refusal": 1}}, "refusal is 1; text"),
    ({"message": {"content": "3", "reasoning": 1.5}}, "reasoning is 1.5"),
    ({"message": {"content": "3", "reasoning": [{"text": True}]}}, "is True; text"),
    ({"message": {"content": [{"type": "text", "text": {"a": 1}}]}}, "text is {'a': 1}; text"),
    ({"message": {"tool_calls": {"a": 1}}}, "tool_calls is {'a': 1}; a list"),
    ({"message": {"tool_calls": [{"id": 1, "function": {}}]}}, "tool call 0: id is 1; text"),
    ({"message": {"tool_calls": [{"function": {"name": 3}}]}}, "tool call 0: name is 3; text"),
    ({"message": {"tool_calls": [{"function": "ls"}]}}, "tool call 0: function is 'ls'; an object"),
    ({"message": {"function_call": "ls"}}, "function_call is 'ls'; an object"),
    ({"message": ["x" * 1000]}, r"message is \['x{10,20}\.\.\.x+'\]; an object is possible"),
    ({"meta_info": "x"}, "meta_info is 'x'"),
    ({"logprobs": [1], "token_ids": [1], "prompt_token_ids": [1]}, "logprobs is"),
]


@cases(("fields", "problem"), WRONG, ids=[each[1] for each in WRONG])
def test_a_field_of_another_type_is_named_with_its_value(fields, problem):
    with pytest.raises(ReplyError, match=problem):
        of_choice(**fields)


@cases("usage", [3, {"completion_tokens": "2"}, {"prompt_tokens": True}], ids=str)
def test_what_counts_tokens_is_a_number(usage):
    with pytest.raises(ReplyError, match=r"usage.* is (3|'2'|True); an? "):
        read_reply(json.dumps(answer() | {"usage": usage}).encode(), "p")


REASONING = [
    ("reasoning_content", "hm", "reasoning_content"),
    ("reasoning", "hm", "reasoning"),
    ("reasoning", {"content": "hm"}, None),
    ("reasoning", [{"text": "h"}, {"text": "m"}], None),
    (
        "reasoning_details",
        [{"type": "reasoning.text", "text": "hm"}, {"type": "reasoning.encrypted", "data": "x"}],
        None,
    ),
    ("reasoning_details", [{"type": "reasoning.summary", "summary": "hm"}], None),
    ("thinking", "hm", None),
]


@cases(("name", "value", "field"), REASONING, ids=range(len(REASONING)))
def test_reasoning_is_text_wherever_and_however_it_comes(name, value, field):
    reply = read({"content": "3", name: value})
    assert (reply.message.reasoning, reply.reasoning_field) == ("hm", field)


def test_a_refusal_is_what_the_model_says():
    assert read({"content": None, "refusal": "I will not."}).message.content == "I will not."


FUNCTION = {"name": "terminal", "arguments": '{"a":  1'}
CALLS = [
    ("OpenAI", [{"id": "c1", "type": "function", "function": FUNCTION}], [("terminal", '{"a":  1')]),
    ("no type", [{"id": "c1", "function": FUNCTION}], [("terminal", '{"a":  1')]),
    ("flat", [{"id": "c1", **FUNCTION}], [("terminal", '{"a":  1')]),
    ("custom", [{"type": "custom", "custom": {"name": "terminal", "input": "ls"}}], [("terminal", "ls")]),
    ("null call", [None, {"id": "c1", "function": FUNCTION}], [("terminal", '{"a":  1')]),
    ("object", [{"function": {"name": "t", "arguments": {"a": "ä"}}}], [("t", '{"a": "ä"}')]),
    ("null arguments", [{"function": {"name": "t", "arguments": None}}], [("t", "{}")]),
    ("no arguments", [{"function": {"name": "t"}}], [("t", "{}")]),
    ("empty", [{"function": {"name": "t", "arguments": ""}}], [("t", "")]),
    ("none", None, []),
    ("no calls", [], []),
]


@cases(("calls", "read_as"), [each[1:] for each in CALLS], ids=[each[0] for each in CALLS])
def test_calls_are_read_with_their_arguments_as_text(calls, read_as):
    reply = read({"content": "", "tool_calls": calls})
    assert [(c.name, c.arguments) for c in reply.message.tool_calls] == read_as
    assert reply.finish_reason == ("tool_calls" if read_as else "stop")


@cases("ids", [("a", "a"), (None, None), ("", ""), ("a", None)], ids=str)
def test_two_calls_have_two_ids(ids):
    calls = [{"id": each, "function": FUNCTION} for each in ids]
    read_ids = [c.id for c in read({"tool_calls": calls}).message.tool_calls]
    assert len(set(read_ids)) == 2
    assert all(isinstance(each, str) and each for each in read_ids)


@cases("name", [None, ""], ids=str)
def test_a_call_of_nothing_is_one_that_cannot_be_read(name):
    (call,) = read(
        {"tool_calls": [{"id": "c", "function": {"name": name, "arguments": "{}"}}]}
    ).message.tool_calls
    assert (call.name, call.status) == ("", "missing_name")


def test_a_call_that_is_no_object_is_refused():
    with pytest.raises(ReplyError, match=r"tool call 0 is 'ls'"):
        read({"tool_calls": ["ls"]})


@cases("role", [..., None, "", "assistant"], ids=["absent", "null", "empty", "assistant"])
def test_an_answer_without_a_role_is_the_assistants(role):
    message = {"content": "3"} if role is ... else {"content": "3", "role": role}
    assert of_choice(message=message).message.role == "assistant"


@cases("role", ["user", "tool", "system", "Assistant", 3], ids=str)
def test_a_message_of_somebody_else_is_no_answer(role):
    with pytest.raises(ReplyError, match=f"role {role!r}; an answer is the assistant's"):
        of_choice(message={"role": role, "content": "3"})


REASONS = [
    (..., "stop"), (None, "stop"), ("", "stop"), ("stop", "stop"),
    ("eos_token", "stop"), ("end_turn", "stop"), ("COMPLETE", "stop"), ("tool_calls", "stop"),
    ({"type": "stop", "matched": 2}, "stop"), ({"type": "length"}, "length"), ("length", "length"),
    ("MAX_TOKENS", "length"), ("model_length", "length"), ("model_context_window_exceeded", "length"),
]  # fmt: skip


@cases(("given", "reason"), REASONS, ids=[str(each[0]) for each in REASONS])
def test_a_finish_reason_has_one_of_three_meanings(given, reason):
    assert of_choice(finish_reason=given).finish_reason == reason


@cases("given", ["stop", "function_call", "tool_use", None], ids=str)
def test_an_answer_that_calls_has_finished_with_its_calls(given):
    message = {"tool_calls": [{"function": FUNCTION}]}
    assert of_choice(finish_reason=given, message=message).finish_reason == "tool_calls"


def test_a_call_that_was_cut_was_cut():
    message = {"tool_calls": [{"function": FUNCTION}]}
    assert of_choice(finish_reason="length", message=message).finish_reason == "length"


@cases("given", ["content_filter", "SAFETY", "PROHIBITED_CONTENT", "refusal"], ids=str)
def test_what_a_filter_held_back_is_no_answer(given):
    with pytest.raises(ReplyError, match=f"filtered the answer .finish_reason {given!r}"):
        of_choice(finish_reason=given)


@cases("given", ["abort", "error", "cancelled", "network_error", {"type": "abort"}], ids=str)
def test_what_a_server_gave_up_is_no_answer(given):
    with pytest.raises(ReplyError, match="gave up"):
        of_choice(finish_reason=given)


def test_without_a_finish_reason_as_many_tokens_as_were_asked_for_were_cut():
    body = json.dumps(answer(finish_reason=None)).encode()
    assert read_reply(body, "5_1", max_tokens=2).finish_reason == "length"
    assert read_reply(body, "5_1", max_tokens=3).finish_reason == "stop"


@cases(
    "choice",
    [
        {"message": {"content": ""}},
        {"message": {"content": None}, "finish_reason": "length"},
        {"message": {"content": None, "reasoning": "hm"}},
    ],
    ids=["empty text", "cut", "reasoning"],
)
def test_a_model_may_say_nothing(choice):
    assert of_choice(**choice).message.content == ""


def test_a_stop_token_alone_is_an_answer():
    assert read({"content": None}).tokens.token_ids == (11, 2)


def test_a_counted_token_is_an_answer():
    body = {"choices": [{"message": {"content": None}}], "usage": {"completion_tokens": 1}}
    assert read_reply(json.dumps(body).encode(), "p").message.content == ""


@cases(
    "choice",
    [{"message": {"content": None}}, {"message": {"role": "assistant"}}, {"message": {"tool_calls": []}}],
    ids=["null", "absent", "no calls"],
)
def test_an_answer_without_anything_is_lost(choice):
    with pytest.raises(ReplyError, match="the answer is empty"):
        of_choice(**choice)


@cases(
    "body",
    [
        {}, {"choices": None}, {"choices": []}, {"choices": {}}, {"choices": [None]}, {"choices": ["x"]},
        {"choices": [{}]}, {"choices": [{"message": None}]}, {"choices": [{"message": "hi"}]},
        {"choices": [{"message": {"content": "3"}, "error": {"code": 502, "message": "x"}}]},
    ],
    ids=range(10),
)  # fmt: skip
def test_a_reply_without_a_message_is_lost_in_a_line(body):
    with pytest.raises(ReplyError) as caught:
        read_reply(json.dumps(body).encode(), "p")
    assert "\n" not in str(caught.value)


def test_text_that_ends_in_the_middle_of_a_character_can_be_recorded():
    content = rb'{"choices": [{"message": {"content": "\ud83d\ude00 \ud83d"}, "finish_reason": "length"}]}'
    assert read_reply(content, "p").message.content == "\N{GRINNING FACE} \N{REPLACEMENT CHARACTER}"


def test_a_call_without_an_id_gets_one_from_the_prefix():
    call = {"function": {"name": "terminal", "arguments": "{}"}}
    reply = read_reply(json.dumps(answer(message={"tool_calls": [call]})).encode(), "call_5_1")
    assert [each.id for each in reply.message.tool_calls] == [call_id("call_5_1", 0)]


def test_what_is_no_chat_completion_is_shown():
    with pytest.raises(ReplyError, match=r"no chat completion \(.*\): <html>"):
        read_reply(b"<html>", "call")


def test_a_stop_token_in_the_place_of_no_number_is_no_answer():
    body = answer()
    body["choices"][0]["matched_stop"] = "NaN happened"
    with pytest.raises(ReplyError, match="the server gave up"):
        read_reply(json.dumps(body).encode(), "call")
