import asyncio
import email.utils
import socket
import struct
from dataclasses import replace

import pytest
from starlette.responses import JSONResponse

from environments.policy.base import OpenRow
from tests.environments.policy.chat_server import (
    RENDERER,
    REQUEST,
    TERMINAL,
    USER,
    answer,
    chat_policy,
    failed,
    ok,
    served,
    without,
)
from tests.tables import cases
from tools.errors import ContextOverflow, PolicyError


async def test_a_completion_holds_the_ids_and_logprobs_of_the_server():
    async with served(ok()) as (_, policy):
        completion = await policy.complete(REQUEST)
    assert (completion.prompt_ids, completion.token_ids, completion.logprobs) == (
        (7, 8, 9),
        (11, 2),
        (-0.5, -0.25),
    )
    assert completion.exact


async def test_the_request_names_everything_the_server_needs():
    async with served(ok(), temperature=0.7, top_p=0.9) as (server, policy):
        await policy.complete(REQUEST)
    assert server.asked == [
        {
            "model": "m",
            "messages": [USER.to_openai()],
            "tools": [TERMINAL.to_openai()],
            "n": 1,
            "seed": 5,
            "max_tokens": 77,
            "temperature": 0.7,
            "top_p": 0.9,
            "logprobs": True,
            "top_logprobs": 0,
            "return_token_ids": True,
        }
    ]


@cases(("finish_reason", "text"), [("stop", "3<|im_end|>"), ("length", "3")])
async def test_a_server_without_token_ids_gives_an_approximate_completion(finish_reason, text):
    body = without(answer(finish_reason=finish_reason), "choices", 0, "token_ids")
    async with served(JSONResponse(body)) as (_, policy):
        completion = await policy.complete(REQUEST)
    assert (completion.exact, completion.logprobs) == (False, None)
    assert completion.prompt_ids == RENDERER.prompt_ids(REQUEST.messages, REQUEST.tools)
    assert RENDERER.decode(completion.token_ids) == text


@cases(
    ("body", "problem"),
    [
        (without(answer(), "prompt_token_ids"), "token_ids without prompt_token_ids"),
        (answer(logprobs=(-0.5,)), "1 logprobs for 2 token_ids"),
        ({"error": {"message": "overloaded"}}, "overloaded"),
    ],
)
async def test_an_answer_whose_tokens_do_not_fit_together_is_lost(body, problem):
    async with served(JSONResponse(body)) as (server, policy):
        with pytest.raises(PolicyError, match=problem):
            await policy.complete(REQUEST)
    assert len(server.asked) == 1


@cases("status", [400, 401, 404])
async def test_a_refused_request_is_not_repeated(status):
    async with served(failed(status, "no, because")) as (server, policy):
        with pytest.raises(PolicyError, match=f"/v1/chat/completions answered {status}: no, because"):
            await policy.complete(REQUEST)
    assert len(server.asked) == 1


@cases("status", [408, 429, 500, 529])
async def test_a_failing_server_gets_exactly_the_tries_it_was_given(status):
    async with served(failed(status), tries=3) as (server, policy):
        with pytest.raises(PolicyError, match=rf"answered {status} \(tried 3 times\): broken"):
            await policy.complete(REQUEST)
    assert len(server.asked) == 3


@cases(
    ("stated", "first_wait_s"),
    [
        ("0", 900),
        (email.utils.formatdate(0, usegmt=True), 900),
        ("soon", 0),
        (f"Mon, 01 Jan 2024 00:00:00 +{'9' * 20}", 0),
        (f"Mon, 01 Jan {'9' * 20} 00:00:00 GMT", 0),
    ],
    ids=["number", "date", "word", "offset", "year"],
)
async def test_retry_after_comes_before_our_own_waits_unless_it_is_malformed(stated, first_wait_s):
    answers = (failed(429, headers={"Retry-After": stated}), ok())
    waits = {"first_wait_s": first_wait_s, "longest_wait_s": 900}
    async with served(*answers, **waits) as (server, policy):
        await policy.complete(REQUEST)
    assert len(server.asked) == 2


async def test_a_wait_longer_than_a_request_is_cut_and_the_lines_name_both(caplog):
    answer = failed(429, headers={"Retry-After": "99999"})
    async with served(answer, tries=2, request_timeout_s=2) as (server, policy):
        with pytest.raises(PolicyError, match=r"tried 2 times, 2 s apart where it asks for 99999 s"):
            await policy.complete(REQUEST)
    assert len(server.asked) == 2
    assert "asks to wait 99999 s: asked again after 2 s" in caplog.text


async def test_a_server_that_never_answers_times_out():
    async def hang(request):
        while (await request.receive())["type"] != "http.disconnect":
            pass
        return ok()

    async with served(hang, tries=2, request_timeout_s=0.2) as (_, policy):
        with pytest.raises(PolicyError, match=r"no answer \(tried 2 times\): timed out"):
            await policy.complete(REQUEST)


async def test_a_server_that_hangs_up_is_asked_again():
    connections = []

    async def hang_up(reader, writer):
        connections.append(await reader.readuntil(b"\r\n\r\n"))
        linger = struct.pack("ii", 1, 0)  # reset, as a killed server does
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server:
        policy = chat_policy(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", tries=3)
        with pytest.raises(PolicyError, match=r"no answer \(tried 3 times\)"):
            await policy.complete(REQUEST)
        await policy.aclose()
    assert len(connections) == 3


async def test_a_server_that_wants_max_completion_tokens_gets_it():
    refusal = failed(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.")
    async with served(refusal, ok()) as (server, policy):
        await policy.complete(REQUEST)
    assert (server.asked[1]["max_completion_tokens"], "max_tokens" in server.asked[1]) == (77, False)


async def test_a_refusal_that_stays_is_not_remembered_as_a_refused_field():
    refused = failed(400, "Unrecognized request argument supplied: return_token_ids")
    async with served(refused, failed(400, "bad"), ok()) as (server, policy):
        with pytest.raises(PolicyError, match="answered 400: bad"):
            await policy.complete(REQUEST)
        assert (await policy.complete(REQUEST)).exact
    assert "return_token_ids" in server.asked[2]


@cases(
    "refusal",
    [
        failed(400, "too long", code="context_length_exceeded"),
        failed(400, "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens"),
        failed(400, "The input (5000 tokens) is longer than the model's context length (4096 tokens)."),
        failed(400, "the request exceeds the available context size"),
        JSONResponse({"object": "error", "message": "maximum context length is 8 tokens"}, status_code=400),
    ],
)
async def test_a_conversation_that_does_not_fit_is_a_context_overflow(refusal):
    async with served(refusal) as (server, policy):
        with pytest.raises(ContextOverflow, match="answered 400"):
            await policy.complete(REQUEST)
    assert len(server.asked) == 1


async def test_no_more_requests_are_in_flight_than_allowed():
    in_flight = 0
    two, release = asyncio.Event(), asyncio.Event()

    async def hold(request):
        nonlocal in_flight
        if server.asked[-1]["model"] == "probe":
            return ok()
        in_flight += 1
        if in_flight == 2:
            two.set()
        await release.wait()
        in_flight -= 1
        return ok()

    async with served(hold, max_concurrency=2) as (server, policy):
        waiting = [asyncio.create_task(policy.complete(REQUEST)) for _ in range(12)]
        await two.wait()
        probe = chat_policy(server.base_url, model="probe")
        for _ in range(3):  # whatever else was sent has arrived before these are answered
            await probe.complete(REQUEST)
        seen = in_flight
        release.set()
        await asyncio.gather(*waiting)
        await probe.aclose()
    assert (seen, len(server.asked)) == (2, 15)


@cases(
    ("held", "extends", "prompt"),
    [((7, 8), True, (9,)), ((7, 9), False, (7, 8, 9)), ((7, 8, 9), False, (7, 8, 9))],
    ids=["goes on", "forks", "adds nothing"],
)
async def test_of_a_prompt_that_begins_with_the_open_row_only_what_is_new_is_given(held, extends, prompt):
    row = OpenRow()
    row.extend(held, (), messages=1)
    async with served(ok()) as (_, policy):
        completion = await policy.complete(replace(REQUEST, row=row))
    assert (completion.extends_row, completion.prompt_ids) == (extends, prompt)


async def test_tools_in_the_prompt_are_text_of_the_system_message_and_calls_are_read_from_text():
    text = '<tool_call>\n{"name": "terminal", "arguments": {}}\n</tool_call>'
    spoken = {"role": "assistant", "content": text}
    async with served(ok(message=spoken), tools_in_prompt=True) as (server, policy):
        completion = await policy.complete(REQUEST)
    (asked,) = server.asked
    assert "tools" not in asked
    assert [each["role"] for each in asked["messages"]] == ["system", "user"]
    assert [call.name for call in completion.message.tool_calls] == ["terminal"]
