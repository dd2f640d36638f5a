"""An event stream is the reply that its chunks add up to."""

import json

import pytest

from environments.policy.inference.chat_reply import ReplyError, SampledTokens, read_reply
from tests.tables import cases


def stream(*chunks, end="data: [DONE]\n\n", line="\n"):
    events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + end
    return events.replace("\n", line).encode()


def part(finish_reason=None, *, index=0, **fields):
    delta = fields.pop("delta", {})
    return {"choices": [{"index": index, "delta": delta, "finish_reason": finish_reason, **fields}]}


def read(*chunks, **more):
    return read_reply(stream(*chunks, **more), "p")


@cases("line", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
def test_pieces_of_text_and_ids_are_joined(line):
    reply = read(
        {**part(delta={"role": "assistant", "content": ""}), "prompt_token_ids": [7, 8]},
        part(delta={"content": "h"}, token_ids=[11], logprobs={"content": [{"logprob": -0.5}]}),
        part("stop", delta={"content": "i"}, token_ids=[2], logprobs={"content": [{"logprob": -0.25}]}),
        line=line,
    )
    assert reply.message.content == "hi"
    assert reply.tokens == SampledTokens(prompt_ids=(7, 8), token_ids=(11, 2), logprobs=(-0.5, -0.25))


def test_a_stream_without_ids_is_text_alone():
    reply = read(
        part(delta={"reasoning_content": "h"}), part("stop", delta={"reasoning_content": "m", "content": "3"})
    )
    assert (reply.message.reasoning, reply.message.content, reply.tokens) == ("hm", "3", None)


def piece(arguments=None, name=None, **fields):
    return part(delta={"tool_calls": [{**fields, "function": {"name": name, "arguments": arguments}}]})


CALLS = [
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


@cases("pieces", [each[1] for each in CALLS], ids=[each[0] for each in CALLS])
def test_pieces_of_calls_find_their_call(pieces):
    reply = read(*pieces, part("tool_calls"))
    assert [(c.name, c.arguments) for c in reply.message.tool_calls] == [("a", '{"n":1}'), ("b", "{}")]


def test_arguments_that_come_as_an_object_are_kept():
    reply = read(piece({"n": 1}, "a", index=0, id="x"), part("tool_calls"))
    assert reply.message.tool_calls[0].arguments == '{"n": 1}'


def test_parts_of_a_content_are_joined():
    thought = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]
    reply = read(part(delta={"content": thought}), part("stop", delta={"content": "3"}))
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


def test_another_choice_is_not_ours():
    reply = read(part(delta={"content": "x"}, index=1), part("stop", delta={"content": "3"}))
    assert reply.message.content == "3"


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
    content = stream(*chunks, part("stop"))
    # Texts that are joined piece by piece would take minutes.
    assert len(read_reply(content, "p").message.content) == 50_000
