"""A reply, whole or streamed, is a typed value in every shape that servers have, or refused in a line."""

import json

import orjson
import pytest

from environments.policy.inference.chat_reply import (
    ReplyError,
    SampledTokens,
    call_id,
    read_reply,
    remove_row,
)
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
    ({"message": {"tool_calls": ["ls"]}}, "tool call 0 is 'ls'"),
    ({"message": {"role": "user", "content": "3"}}, "role 'user'; an answer is the assistant's"),
    ({"message": {"role": 3, "content": "3"}}, "role 3; an answer is the assistant's"),
    ({"logprobs": [1], "token_ids": [1], "prompt_token_ids": [1]}, "logprobs is"),
]


@cases(("fields", "problem"), WRONG, ids=[each[1] for each in WRONG])
def test_a_field_of_another_type_is_named_with_its_value(fields, problem):
    with pytest.raises(ReplyError, match=problem):
        of_choice(**fields)


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


def test_a_call_of_nothing_is_one_that_cannot_be_read():
    nameless = {"id": "c", "function": {"name": None, "arguments": "{}"}}
    (call,) = read({"tool_calls": [nameless]}).message.tool_calls
    assert (call.name, call.status) == ("", "missing_name")


@cases("role", [..., None, ""], ids=["absent", "null", "empty"])
def test_an_answer_without_a_role_is_the_assistants(role):
    message = {"content": "3"} if role is ... else {"content": "3", "role": role}
    assert of_choice(message=message).message.role == "assistant"


REASONS = [
    (..., "stop"), (None, "stop"), ("", "stop"), ("stop", "stop"),
    ("eos_token", "stop"), ("end_turn", "stop"), ("COMPLETE", "stop"), ("tool_calls", "stop"),
    ({"type": "stop", "matched": 2}, "stop"), ({"type": "length"}, "length"), ("length", "length"),
    ("MAX_TOKENS", "length"), ("model_length", "length"), ("model_context_window_exceeded", "length"),
]  # fmt: skip


@cases(("given", "reason"), REASONS, ids=[str(each[0]) for each in REASONS])
def test_a_finish_reason_has_one_of_three_meanings(given, reason):
    assert of_choice(finish_reason=given).finish_reason == reason


@cases("given", ["stop", "function_call", "tool_use", None, "length"], ids=str)
def test_an_answer_that_calls_has_finished_with_its_calls_or_was_cut(given):
    message = {"tool_calls": [{"function": FUNCTION}]}
    finished = of_choice(finish_reason=given, message=message).finish_reason
    assert finished == ("length" if given == "length" else "tool_calls")


@cases(
    ("given", "problem"),
    [
        *(
            (each, f"filtered the answer .finish_reason {each!r}")
            for each in ("content_filter", "SAFETY", "refusal")
        ),
        *((each, "gave up") for each in ("abort", "error", "cancelled", "network_error", {"type": "abort"})),
    ],
    ids=str,
)
def test_what_was_held_back_or_given_up_is_no_answer(given, problem):
    with pytest.raises(ReplyError, match=problem):
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


def test_a_stop_token_or_a_counted_one_is_an_answer():
    assert read({"content": None}).tokens.token_ids == (11, 2)
    body = {"choices": [{"message": {"content": None}}], "usage": {"completion_tokens": 1}}
    assert read_reply(json.dumps(body).encode(), "p").message.content == ""


def test_counts_of_zero_tokens_are_none():
    body = {"choices": [{"message": {"content": "a"}}], "usage": {"prompt_tokens": 0, "completion_tokens": 0}}
    assert read_reply(json.dumps(body).encode(), "p").usage == {}


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


def test_the_former_function_call_is_a_call_and_a_refusal_is_what_the_model_says():
    legacy = read({"content": None, "function_call": FUNCTION}, finish_reason="function_call")
    assert [(c.name, c.arguments) for c in legacy.message.tool_calls] == [("terminal", '{"a":  1')]
    assert legacy.finish_reason == "tool_calls"
    assert read({"content": None, "refusal": "I will not."}).message.content == "I will not."


# Token ids and logprobs.


def tokens(body):
    return read_reply(json.dumps(body).encode(), "p").tokens


def sglang(**more):
    return {"choices": [{"message": {"content": "3"}, "finish_reason": "stop", **more}]}


IDS = SampledTokens(prompt_ids=(7, 8, 9), token_ids=(11, 2), logprobs=(-0.5, -0.25))
CONTENT = {"content": [{"logprob": -0.5}, {"logprob": -0.25}]}


@cases(
    "body",
    [
        answer(),
        sglang(prompt_token_ids=[7, 8, 9], token_ids=[11, 2], logprobs=CONTENT),
        sglang(prompt_token_ids=[7, 8, 9], response_token_ids=[11, 2], logprobs=CONTENT),
        {**sglang(response_token_ids=[11, 2], logprobs=CONTENT), "prompt_token_ids": [7, 8, 9]},
        sglang(
            prompt_token_ids=[7, 8, 9],
            logprobs=None,
            meta_info={"output_token_logprobs": [[-0.5, 11, "a"], [-0.25, 2, None]]},
        ),
    ],
    ids=["vLLM", "one place", "SGLang", "prompt on top", "meta_info"],
)
def test_ids_and_logprobs_are_read_where_the_server_has_them(body):
    assert tokens(body) == IDS


@cases(
    "body",
    [
        sglang(),
        sglang(token_ids=None, response_token_ids=None, logprobs=CONTENT),
        {**sglang(token_ids=None), "prompt_token_ids": [7]},
        sglang(meta_info={"id": "x"}),
    ],
    ids=["none", "null", "prompt alone", "other facts"],
)
def test_a_server_without_ids_gave_text_alone(body):
    assert tokens(body) is None


@cases("wrong", [True, 1.0, "11", None, -1, 2**31], ids=repr)
@cases("where", ["token_ids", "prompt_token_ids"])
def test_an_id_is_an_integer_of_a_vocabulary(where, wrong):
    ids = {"token_ids": [11, 2], "prompt_token_ids": [7, 8], where: [11, wrong]}
    with pytest.raises(ReplyError, match=rf"{where}\.1 is .*; a token id is an integer"):
        tokens(sglang(**ids))


@cases("wrong", [True, "x", None, -9999.0, -1e5, 1.0, 3, [1]], ids=repr)
def test_a_logprob_is_one_of_a_sampled_token(wrong):
    logprobs = {"content": [{"logprob": -0.5}, {"logprob": wrong}]}
    with pytest.raises(ReplyError, match="at token 1 of 2"):
        tokens(sglang(token_ids=[11, 2], prompt_token_ids=[7], logprobs=logprobs))


@cases("content", [[{}, {}], [1, 2], [None, None], "ab", 3], ids=repr)
def test_logprobs_without_one_are_refused(content):
    with pytest.raises(ReplyError, match="logprob"):
        tokens(sglang(token_ids=[11, 2], prompt_token_ids=[7], logprobs={"content": content}))


def test_ids_of_which_nobody_knows_what_came_before_are_refused_with_what_to_do():
    with pytest.raises(
        ReplyError, match=r"response_token_ids without prompt_token_ids.*--openai.server_type"
    ):
        tokens(sglang(response_token_ids=[11]))


def test_the_version_of_the_weights_is_read_where_it_is_told():
    body = sglang(meta_info={"weight_version": "v7"})
    assert read_reply(json.dumps(body).encode(), "p").weight_version == "v7"
    body = {**sglang(), "metadata": {"weight_version": "v8"}}
    assert read_reply(json.dumps(body).encode(), "p").weight_version == "v8"


# Event streams.


def stream(*chunks, end="data: [DONE]\n\n", line="\n"):
    events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + end
    return events.replace("\n", line).encode()


def part(finish_reason=None, *, index=0, **fields):
    delta = fields.pop("delta", {})
    return {"choices": [{"index": index, "delta": delta, "finish_reason": finish_reason, **fields}]}


def read_stream(*chunks, **more):
    return read_reply(stream(*chunks, **more), "p")


@cases("line", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
def test_pieces_of_text_and_ids_are_joined(line):
    reply = read_stream(
        {**part(delta={"role": "assistant", "content": ""}), "prompt_token_ids": [7, 8]},
        part(delta={"content": "h"}, token_ids=[11], logprobs={"content": [{"logprob": -0.5}]}),
        part(delta={"content": "x"}, index=1),
        part("stop", delta={"content": "i"}, token_ids=[2], logprobs={"content": [{"logprob": -0.25}]}),
        line=line,
    )
    assert reply.message.content == "hi"
    assert reply.tokens == SampledTokens(prompt_ids=(7, 8), token_ids=(11, 2), logprobs=(-0.5, -0.25))


def test_a_stream_without_ids_is_text_alone():
    reply = read_stream(
        part(delta={"reasoning_content": "h"}), part("stop", delta={"reasoning_content": "m", "content": "3"})
    )
    assert (reply.message.reasoning, reply.message.content, reply.tokens) == ("hm", "3", None)


def test_an_event_without_data_is_none():
    reply = read_reply(b"data:\n\nevent: ping\ndata:\n\n" + stream(part("stop", delta={"content": "3"})), "p")
    assert reply.message.content == "3"


def piece(arguments=None, name=None, **fields):
    return part(delta={"tool_calls": [{**fields, "function": {"name": name, "arguments": arguments}}]})


STREAMED_CALLS = [
    (
        "OpenAI",
        [
            piece("", "a", index=0, id="x"),
            piece('{"n":', index=0),
            piece("1}", index=0),
            piece("{}", "b", index=1, id="y"),
        ],
    ),
    ("ollama", [piece('{"n":1}', "a", index=0, id="x"), piece("{}", "b", index=0, id="y")]),
    ("no index", [piece('{"n":1}', "a", id="x"), piece("{}", "b", id="y")]),
    ("no index, no id", [piece('{"n":', "a"), piece("1}"), piece("{}", "b")]),
]


@cases("pieces", [each[1] for each in STREAMED_CALLS], ids=[each[0] for each in STREAMED_CALLS])
def test_pieces_of_calls_find_their_call(pieces):
    reply = read_stream(*pieces, part("tool_calls"))
    assert [(c.name, c.arguments) for c in reply.message.tool_calls] == [("a", '{"n":1}'), ("b", "{}")]


def test_arguments_that_come_as_an_object_are_kept():
    reply = read_stream(piece({"n": 1}, "a", index=0, id="x"), part("tool_calls"))
    assert reply.message.tool_calls[0].arguments == '{"n": 1}'


def test_parts_of_a_content_are_joined():
    thought = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]
    reply = read_stream(part(delta={"content": thought}), part("stop", delta={"content": "3"}))
    assert (reply.message.reasoning, reply.message.content) == ("hm", "3")


@cases("line", [": keep-alive\n\n", "event: message\n", "id: 3\n", "retry: 10\n"])
def test_what_else_an_event_stream_has_is_passed_over(line):
    content = line.encode() + stream(part("stop", delta={"content": "3"}))
    assert read_reply(content, "p").message.content == "3"


def test_comments_before_an_object_are_passed_over():
    body = (
        b': OPENROUTER PROCESSING\n\n: OPENROUTER PROCESSING\n\n{"choices": [{"message": {"content": "3"}}]}'
    )
    assert read_reply(body, "p").message.content == "3"


@cases(
    ("content", "problem"),
    [
        (stream(part(delta={"content": "3"}), end=""), "breaks off"),
        (stream(part(delta={"content": "3"}), {"error": {"message": "out of memory"}}), "out of memory"),
        (b"data: {oops\n\n", "no JSON"),
        (b"data: [1]\n\n", "no object"),
        (b"data: [DONE]\n\n", "message is missing"),
        (b": waiting\n\n", "breaks off"),
        (stream(part(3, delta={"content": "3"})), "finish_reason is 3"),
        (stream(part("stop", delta={"content": {"text": "3"}})), "content is {'text': '3'}"),
        (stream(part("stop", delta={"tool_calls": ["ls"]})), "tool call 0 is 'ls'"),
        (stream(part("stop", delta={"content": "3"}, index="0")), "a choice's index is '0'"),
    ],
    ids=["cut", "error", "no JSON", "list", "nothing", "comments", "finish", "content", "call", "index"],
)
def test_a_stream_that_is_no_answer_is_lost_in_a_line(content, problem):
    with pytest.raises(ReplyError, match=problem) as caught:
        read_reply(content, "p")
    assert "\n" not in str(caught.value)


def test_many_small_pieces_cost_no_more_than_their_bytes():
    chunks = [
        part(delta={"content": "a", "tool_calls": [{"index": 0, "function": {"arguments": "1"}}]})
    ] * 50_000
    # Texts that are joined piece by piece would take minutes.
    assert len(read_stream(*chunks, part("stop")).message.content) == 50_000


# A prompt that begins with the open row is read from there on.


def echo(ids, **fields):
    return orjson.dumps({"choices": [{"index": 0}], "prompt_token_ids": ids, **fields})


def rest(content, row):
    cut = remove_row(content, orjson.dumps(row)[1:-1])
    return None if cut is None else orjson.loads(cut)


def test_what_follows_the_row_is_left():
    assert rest(echo([1, 2, 3, 40, 5]), [1, 2, 3]) == {
        "choices": [{"index": 0}],
        "prompt_token_ids": [40, 5],
    }


@cases(
    "ids",
    [[1, 2], [1, 2, 3], [1, 2, 30, 4], [1, 9, 3, 4], [11, 2, 3, 4], []],
    ids=["shorter", "the row alone", "a longer id", "another id", "another first id", "none"],
)
def test_a_prompt_that_does_not_go_on_is_left_alone(ids):
    assert rest(echo(ids), [1, 2, 3]) is None


def test_ids_beside_the_choice_are_found_in_it():
    content = orjson.dumps({"choices": [{"prompt_token_ids": [1, 2, 3]}]})
    assert rest(content, [1, 2]) == {"choices": [{"prompt_token_ids": [3]}]}


@cases("text", ['"prompt_token_ids":[1,2,7]', '"prompt_token_ids": [1, 2, 7]'])
def test_a_reply_that_has_the_name_in_a_text_is_left_alone(text):
    assert rest(echo([1, 2, 3], text=text), [1, 2]) is None


def test_a_reply_that_has_the_name_twice_is_left_alone():
    arguments = {"prompt_token_ids": [1, 2, 9]}
    assert rest(orjson.dumps({"arguments": arguments, "prompt_token_ids": [1, 2, 3]}), [1, 2]) is None
    assert rest(orjson.dumps({"prompt_token_ids": [1, 2, 3], "arguments": arguments}), [1, 2]) is None
    content = b'{"choices":[{"prompt_token_ids":[1,2,3]}],"prompt_token_ids": [1, 2, 3]}'
    assert remove_row(content, b"1,2") is None
    assert remove_row(b'{"prompt_token_ids": [1, 2, 3]}', b"1,2") is None


def test_without_a_row_nothing_is_cut():
    assert remove_row(echo([1, 2]), b"") is None
