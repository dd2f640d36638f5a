"""The look at a model server before a run: it buys nothing and says what is wrong."""

import asyncio

import pytest
from starlette.responses import JSONResponse, PlainTextResponse

from tests.environments.policy.chat_server import chat_policy, failed, ok, served
from tests.tables import cases
from tools.errors import ConfigError


async def test_the_check_accepts_a_server_that_has_the_model_and_buys_nothing():
    async with served(ok()) as (server, policy):
        await policy.check()
    assert server.asked == []


@cases(
    ("models", "problem"),
    [
        (failed(401, "bad key"), r"refuses the API key \(401\): bad key"),
        (failed(403, "not yours"), r"refuses the API key \(403\): not yours"),
        (JSONResponse({"data": [{"id": "b"}, {"id": "a"}]}), "has no model 'm'; it has a, b"),
        (
            PlainTextResponse("<html>hi</html>"),
            "does not speak the OpenAI API; its /models is <html>hi</html>",
        ),
    ],
)
async def test_the_check_says_what_is_wrong_with_the_server(models, problem):
    async with served(ok(), models=models) as (_, policy):
        with pytest.raises(ConfigError, match=problem) as caught:
            await policy.check()
    assert "\n" not in str(caught.value)


@cases("listed", ["m", "models/m"])
async def test_the_check_finds_a_model_behind_a_prefix(listed):
    async with served(ok(), models=JSONResponse({"data": [{"id": listed}]})) as (_, policy):
        await policy.check()


async def test_the_check_accepts_a_server_without_a_model_list_that_refuses_an_empty_request():
    async with served(failed(400, "model is missing"), models=failed(404)) as (server, policy):
        await policy.check()
    assert server.asked == [{}]


async def test_the_check_names_a_key_that_a_server_without_a_model_list_refuses():
    async with served(failed(401, "bad key"), models=failed(404)) as (_, policy):
        with pytest.raises(ConfigError, match="refuses the API key"):
            await policy.check()


@cases(
    "models",
    [
        failed(500, "Internal Server Error"),
        JSONResponse({"object": "list", "data": []}),
        JSONResponse({"object": "list", "data": None}),
        JSONResponse([1]),
        JSONResponse({"ok": True}),
    ],
    ids=["500", "empty", "null", "no names", "no list"],
)
async def test_a_server_whose_list_of_models_is_of_no_use_is_asked_whether_it_chats(models):
    async with served(failed(422, "model is missing"), models=models) as (server, policy):
        await policy.check()
    assert server.asked == [{}]


async def test_a_server_that_breaks_on_an_empty_chat_and_refuses_what_is_none_can_be_used():
    chat = (failed(500, "Internal Server Error"), failed(422, "no object"))
    async with served(*chat, models=failed(500)) as (server, policy):
        await policy.check()
    assert server.asked == [{}, []]


@cases(
    ("models", "chat", "problem"),
    [
        (failed(500, "oh"), failed(500, "ah"), "answered 500: oh"),
        (failed(500, "oh"), failed(404, "ah"), "answered 500: oh"),
        (JSONResponse([1]), failed(500, "ah"), r"does not speak the OpenAI API; its /models is \[1\]"),
        (JSONResponse({"data": []}), failed(500, "ah"), "answered 500: ah"),
        (JSONResponse({"data": []}), failed(403, "ah"), "refuses the API key"),
        (failed(404), JSONResponse({"ok": True}), "answers a chat with"),
    ],
    ids=["broken", "no chat", "other", "empty", "key", "no chat completion"],
)
async def test_a_server_that_does_not_chat_either_is_what_its_list_said(models, chat, problem):
    async with served(chat, models=models) as (_, policy):
        with pytest.raises(ConfigError, match=problem):
            await policy.check()


@cases(
    "listed",
    [
        [{"id": "m"}],
        ["m"],
        {"models": [{"name": "m:latest", "model": "m:latest"}]},
        {"object": "list", "data": [{"id": "m"}], "models": [{"name": "m"}]},
    ],
    ids=["Together", "names", "ollama", "llama.cpp"],
)
async def test_the_check_reads_the_lists_of_other_servers(listed):
    async with served(failed(404), models=JSONResponse(listed)) as (server, policy):
        await policy.check()
    assert server.asked == []


async def test_the_check_guesses_a_missing_v1():
    async with served(ok()) as (server, _):
        policy = chat_policy(server.base_url.removesuffix("/v1"))
        with pytest.raises(
            ConfigError, match=r"neither /models nor /chat/completions \(did you mean .*/v1\?\)"
        ):
            await policy.check()
        await policy.aclose()


async def test_the_check_names_a_server_that_cannot_be_reached():
    async with served(ok()) as (server, _):
        pass
    with pytest.raises(ConfigError, match=r"no model server answers at http://127\.0\.0\.1") as refusal:
        await chat_policy(server.base_url).check()
    assert "ssl" not in str(refusal.value)


async def test_a_server_that_ends_each_connection_after_an_error_can_be_used():
    async def break_once(reader, writer):
        asked = await reader.readuntil(b"\r\n\r\n")
        refused = asked.startswith(b"POST") and await reader.readexactly(2) == b"[]"
        status = b"422 Unprocessable Entity" if refused else b"500 Internal Server Error"
        writer.write(b"HTTP/1.1 %b\r\nContent-Length: 2\r\n\r\n{}" % status)
        await reader.read(1)  # what comes next on this connection is lost
        writer.close()

    async with await asyncio.start_server(break_once, "127.0.0.1", 0) as server:
        policy = chat_policy(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1")
        await policy.check()
        await policy.aclose()
