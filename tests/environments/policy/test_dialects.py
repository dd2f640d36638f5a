"""What a chat policy learns of its server, and what one odd answer must not teach it."""

import json
import logging
from codecs import BOM_UTF8
from dataclasses import replace

import pytest
from starlette.responses import JSONResponse, PlainTextResponse

from environments.policy.base import CompletionRequest
from environments.policy.inference.dialect import find_refused_fields
from environments.policy.inference.http_client import StatusError, error_fields, error_message
from environments.trajectory import Message
from tests.environments.policy.chat_server import REQUEST, USER, answer, failed, ok, served, without
from tests.tables import cases
from tools.calls import ToolCall
from tools.errors import PolicyError

NO_IDS = failed(400, "Unrecognized request argument supplied: return_token_ids")
PLAIN = JSONResponse(without(answer(), "choices", 0, "token_ids"))
CAPTURE = {"logprobs", "top_logprobs", "return_token_ids"}


@cases(
    "odd",
    [
        NO_IDS,
        failed(400, "logprobs is not supported", param="logprobs"),
        failed(422, "Extra inputs are not permitted: logprobs"),
    ],
    ids=["unrecognized", "param", "extra"],
)
async def test_a_server_that_has_given_ids_is_asked_for_them_whatever_it_says(odd):
    async with served(ok(), odd, ok()) as (server, policy):
        await policy.complete(REQUEST)
        with pytest.raises(PolicyError, match="answered 4"):
            await policy.complete(REQUEST)
        assert (await policy.complete(REQUEST)).exact
    assert all(asked.keys() >= CAPTURE for asked in server.asked)


async def test_an_error_that_mentions_the_fields_costs_its_rollout_alone():
    async with served(failed(400, "Invalid message: 'I think logprobs is not supported'"), ok()) as (
        _,
        policy,
    ):
        with pytest.raises(PolicyError, match="answered 400"):
            await policy.complete(REQUEST)
        assert (await policy.complete(REQUEST)).exact


async def test_a_second_request_that_is_refused_for_its_ids_switches_a_run_and_one_does_not():
    async with served(NO_IDS, PLAIN, ok()) as (_, policy):
        assert [(await policy.complete(REQUEST)).exact for _ in range(3)] == [False, True, True]
    async with served(NO_IDS, PLAIN, NO_IDS, PLAIN) as (server, policy):
        for _ in range(4):
            await policy.complete(REQUEST)
    captures = [asked.keys() >= CAPTURE for asked in server.asked]
    assert captures == [True, False, True, False, False, False]


async def test_text_alone_from_a_server_that_has_given_ids_is_lost():
    async with served(ok(), PLAIN, ok()) as (_, policy):
        await policy.complete(REQUEST)
        with pytest.raises(PolicyError, match="gave no token ids this time, and has given them before"):
            await policy.complete(REQUEST)
        assert (await policy.complete(REQUEST)).exact


async def test_that_no_ids_come_is_said_once_and_loudly(caplog):
    async with served(NO_IDS, PLAIN) as (_, policy):
        for _ in range(3):
            await policy.complete(REQUEST)
    told = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert len([each for each in told if "gives no token ids" in each]) == 1
    assert (
        len([each for each in told if "refuses logprobs" in each or "refuses return_token_ids" in each]) == 1
    )


async def test_ids_without_logprobs_are_told_with_what_to_switch_on(caplog):
    async with served(JSONResponse(without(answer(), "choices", 0, "logprobs"))) as (_, policy):
        await policy.complete(REQUEST)
        completion = await policy.complete(REQUEST)
    told = [each.getMessage() for each in caplog.records]
    assert (completion.exact, completion.logprobs) == (True, None)
    assert len(told) == 1
    assert "token ids without logprobs" in told[0]
    assert "--max-logprobs" in told[0]


REFUSED = [
    ("temperature", failed(400, "Unsupported value: 'temperature' does not support 1", param="temperature")),
    ("top_p", failed(400, "Unsupported parameter: 'top_p' is not supported", param="top_p")),
    ("seed", failed(422, "Extra inputs are not permitted: seed")),
    ("n", failed(400, "Unknown parameter: 'n'.")),
]


async def test_refused_fields_that_may_be_left_out_are_and_add_up():
    async with served(*(refusal for _, refusal in REFUSED), ok()) as (server, policy):
        assert (await policy.complete(REQUEST)).exact
        await policy.complete(REQUEST)
    for index, (name, _) in enumerate(REFUSED):
        assert [name in asked for asked in server.asked] == [at <= index for at in range(6)]
    assert all(asked.keys() >= CAPTURE for asked in server.asked)


@cases(
    ("status", "text", "line"),
    [
        (
            400,
            '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
            "start vLLM with --enable-auto-tool-choice --tool-call-parser NAME",
        ),
        (500, "tools param requires --jinja flag", "llama.cpp with --jinja"),
        (400, "registry.ollama.ai/library/mock does not support tools", "take one that calls tools"),
    ],
    ids=["vLLM", "llama.cpp", "ollama"],
)
async def test_a_server_that_takes_no_tools_is_lost_in_one_line_that_says_what_to_do(status, text, line):
    async with served(failed(status, text)) as (_, policy):
        with pytest.raises(PolicyError, match=line) as caught:
            await policy.complete(REQUEST)
    assert "\n" not in str(caught.value)


STREAM = (
    b'data: {"prompt_token_ids": [7], "choices": [{"index": 0, "delta": {"role": "assistant"}}]}\n\n'
    b'data: {"choices": [{"index": 0, "delta": {"content": "3"}, "token_ids": [11], '
    b'"logprobs": {"content": [{"logprob": -0.5}]}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
)


@cases(
    "refusal",
    [
        failed(400, "This model only support stream mode, please enable the stream parameter"),
        failed(422, "stream must be true"),
        JSONResponse({"error": "Only streaming mode is supported."}),
    ],
    ids=["DashScope", "must", "transformers"],
)
async def test_a_server_that_only_streams_is_asked_to(refusal):
    streamed = PlainTextResponse(STREAM, media_type="text/event-stream")
    async with served(refusal, streamed) as (server, policy):
        first = await policy.complete(REQUEST)
        await policy.complete(REQUEST)
    assert [asked.get("stream", False) for asked in server.asked] == [False, True, True]
    assert (first.message.content, first.token_ids, first.logprobs) == ("3", (11,), (-0.5,))


@cases(
    "text",
    [
        "Only streaming mode is supported.",
        "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens'.",
    ],
    ids=["stream", "max_tokens"],
)
async def test_a_server_that_has_given_ids_is_asked_as_it_was(text):
    async with served(ok(), failed(400, text), ok()) as (server, policy):
        await policy.complete(REQUEST)
        with pytest.raises(PolicyError, match="answered 400"):
            await policy.complete(REQUEST)
        await policy.complete(REQUEST)
    assert [(asked["max_tokens"], "stream" in asked) for asked in server.asked] == [(77, False)] * 3


async def test_a_stream_may_begin_with_a_byte_order_mark():
    streamed = PlainTextResponse(BOM_UTF8 + STREAM, media_type="text/event-stream")
    async with served(streamed) as (_, policy):
        completion = await policy.complete(REQUEST)
    assert completion.message.content == "3"


async def test_a_quoted_conversation_about_streams_is_no_wish_for_one():
    quoting = failed(400, "Invalid message: 'it says: only streaming is supported'")
    async with served(quoting, ok()) as (server, policy):
        with pytest.raises(PolicyError, match="answered 400"):
            await policy.complete(REQUEST)
    assert len(server.asked) == 1


THOUGHT = Message(
    role="assistant", reasoning="hm", tool_calls=(ToolCall(id="c", name="terminal", arguments="{}"),)
)
AFTER_A_THOUGHT = CompletionRequest(messages=(USER, THOUGHT, Message(role="tool", tool_call_id="c")))


@cases(
    ("field", "sent"),
    [
        ("reasoning_content", {"reasoning_content"}),
        ("reasoning", {"reasoning"}),
        ("thinking", set()),
        (None, set()),
    ],
)
async def test_reasoning_is_sent_back_in_the_field_that_it_came_in(field, sent):
    message = {"content": "3"} if field is None else {"content": "3", field: "hm"}
    async with served(ok(message=message)) as (server, policy):
        await policy.complete(REQUEST)
        await policy.complete(AFTER_A_THOUGHT)
    assert server.asked[1]["messages"][1].keys() - {"role", "content", "tool_calls"} == sent


async def test_reasoning_that_a_server_refuses_is_left_out():
    forbidden = {"type": "extra_forbidden", "loc": ["body", "messages", 1, "assistant", "reasoning_content"]}
    refusal = JSONResponse({"detail": [forbidden]}, status_code=422)
    async with served(ok(message={"reasoning_content": "hm"}), refusal, ok()) as (server, policy):
        await policy.complete(REQUEST)
        assert (await policy.complete(AFTER_A_THOUGHT)).exact
        await policy.complete(AFTER_A_THOUGHT)
    assert ["reasoning_content" in asked["messages"][1] for asked in server.asked[1:]] == [True, False, False]


async def test_a_model_that_never_calls_is_told_of_once_after_some_rollouts(caplog):
    async with served(ok()) as (_, policy):
        for seed in range(7):
            for _ in range(2):
                await policy.complete(
                    CompletionRequest(messages=REQUEST.messages, tools=REQUEST.tools, seed=seed)
                )
        assert not caplog.records
        for seed in range(7, 30):
            await policy.complete(
                CompletionRequest(messages=REQUEST.messages, tools=REQUEST.tools, seed=seed)
            )
    (told,) = (each.getMessage() for each in caplog.records)
    assert "called none of the 1 tools that it was offered in the first 8 rollouts" in told
    assert all(flag in told for flag in ("--enable-auto-tool-choice", "--jinja", "--openai.family"))


@cases(("without_tools", "said"), [(39, "its template drops them, 39 prompt tokens with"), (21, "--jinja")])
async def test_tools_that_the_template_drops_are_the_cause_that_is_named(without_tools, said, caplog):
    async def count(request):
        text = without(without(answer(), "prompt_token_ids"), "choices", 0, "token_ids")
        counted = 39 if "tools" in await request.json() else without_tools
        return JSONResponse(text | {"usage": {"prompt_tokens": counted, "completion_tokens": 2}})

    async with served(count) as (_, policy):
        for seed in range(8):
            await policy.complete(replace(REQUEST, seed=seed))
    (warning,) = (each.getMessage() for each in caplog.records if "called none" in each.getMessage())
    assert said in warning
    assert ("--openai.tools prompt" in warning) == (without_tools == 39)


@cases("called", [True, False], ids=["calls", "no tools"])
async def test_a_model_that_calls_or_has_nothing_to_call_is_not_told_of(called, caplog):
    call = {"content": "", "tool_calls": [{"function": {"name": "terminal", "arguments": "{}"}}]}
    async with served(ok(message=call) if called else ok(), ok()) as (_, policy):
        for seed in range(20):
            tools = REQUEST.tools if called else ()
            await policy.complete(CompletionRequest(messages=REQUEST.messages, tools=tools, seed=seed))
    assert not caplog.records


# What an error refuses.

FIELDS = (
    "temperature", "top_p", "seed", "n", "max_tokens", "logprobs", "top_logprobs", "return_token_ids",
    "tools", "tool_choice", "stream", "messages.reasoning_content",
)  # fmt: skip


def refused(body, status=400):
    text = body if isinstance(body, str) else json.dumps(body)
    message = error_message(error_fields(text)) if not isinstance(body, str) else None
    error = StatusError(status, message or text[:300], code=None, details=text, retry_after_s=None)
    return sorted(find_refused_fields(error, FIELDS))


def said(message, param=None):
    return {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": None}}


def extra(*places):
    return {
        "detail": [{"type": "extra_forbidden", "loc": ["body", *p], "msg": "Extra inputs"} for p in places]
    }


SAID = [
    (
        said("Unsupported value: 'temperature' does not support 0.7. Only the default (1)", "temperature"),
        ["temperature"],
    ),
    (said("Unsupported value: 'temperature' does not support 0.7. Only the default (1)"), ["temperature"]),
    (said("Unsupported parameter: 'max_tokens' is not supported with this model."), ["max_tokens"]),
    (said("Unrecognized request argument supplied: return_token_ids"), ["return_token_ids"]),
    (said("Unrecognized request arguments supplied: seed, top_logprobs"), ["seed", "top_logprobs"]),
    (said("Unknown parameter: 'seed'."), ["seed"]),
    (said('json: unknown field "return_token_ids"'), ["return_token_ids"]),
    (said("You are not allowed to request logprobs from this model"), ["logprobs"]),
    (said("Logprobs is not enabled for models/gemini-2.5-pro"), ["logprobs"]),
    (said("logprobs is not supported with tools + stream"), ["logprobs"]),
    (said("property 'reasoning_content' is unsupported"), ["messages.reasoning_content"]),
    (said("`temperature` and `top_p` cannot both be specified for this model."), ["temperature", "top_p"]),
    (said("registry.ollama.ai/library/gemma:2b does not support tools"), ["tools"]),
    (said("tools param requires --jinja flag"), ["tools"]),
    (said("Unsupported param: tools"), ["tools"]),
    (
        {"detail": "Unexpected fields in the request: {'return_token_ids', 'seed'}"},
        ["return_token_ids", "seed"],
    ),
    (
        extra(["seed"], ["messages", 6, "assistant", "reasoning_content"]),
        ["messages.reasoning_content", "seed"],
    ),
    ({"object": "error", "message": extra(["return_token_ids"])}, ["return_token_ids"]),
    ({"object": "error", "message": json.dumps(extra(["return_token_ids"]))}, ["return_token_ids"]),
    (
        {"error": {"message": "Provider returned error", "metadata": {"raw": json.dumps(said("x", "seed"))}}},
        ["seed"],
    ),
]


@cases(("body", "fields"), SAID, ids=range(len(SAID)))
def test_a_field_that_an_error_refuses_is_found(body, fields):
    assert refused(body) == fields


ODD = [
    said("bad message near return_token_ids"),
    said("Out of range float values are not JSON compliant: nan in logprobs"),
    said("invalid logprobs: nan"),
    said("logprobs of token 5 is NaN"),
    said("Invalid message: 'please note that logprobs is not supported here'"),
    said('Invalid message: "Unsupported parameter: logprobs" cannot be decoded'),
    said("Unsupported parameter: 'logprobs'", "messages.[3].content"),
    said("Could not decode the message 'I set logprobs and seed'"),
    said("The model produced no text; seed was 5"),
    said("prompt contains an unsupported token near logprobs"),
    {"detail": [{"loc": ["body", "messages", 2, "content"], "msg": "logprobs is not supported"}]},
    "logprobs",
    "<html>seed</html>",
    "",
]


@cases("body", ODD, ids=range(len(ODD)))
def test_an_error_that_mentions_a_field_refuses_none(body):
    assert refused(body) == []


@cases("status", [401, 404, 429, 502, 503])
def test_an_error_of_another_kind_is_no_refusal_of_a_field(status):
    fields = refused(said("Unsupported parameter: 'seed'", "seed"), status)
    assert fields == (["seed"] if status == 404 else [])
