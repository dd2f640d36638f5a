"""What a server says of itself, and what is wrong with it before a run, without buying anything."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

from environments.policy.inference.chat_reply import logprobs_warning
from environments.policy.inference.dialect import UNNAMED_MODEL
from environments.policy.inference.model_server import ModelServer
from environments.policy.inference.server_kind import (
    TEXTS,
    ServerFacts,
    examine_server,
    refuse_other_tokenizer,
)
from environments.policy.rendering.chatml import EMBEDDED, load_tokenizer
from tests.environments.policy.chat_server import chat_policy, failed, ok, served
from tests.equipment.running_server import running_server
from tests.tables import cases
from tools.errors import ConfigError, ServerAway

TOKENIZER = load_tokenizer(EMBEDDED)


@asynccontextmanager
async def saying(pages):
    """A server with these pages and no others."""

    def page(answer):
        async def respond(request):
            return answer if isinstance(answer, PlainTextResponse) else JSONResponse(answer)

        return respond

    app = Starlette(routes=[Route(path, page(answer)) for path, answer in pages.items()])
    async with running_server(app) as base_url:
        server = ModelServer(base_url=base_url, api_key="k", tries=1)
        yield server
        await server.aclose()


def models(**entry):
    return {"/v1/models": {"object": "list", "data": [{"id": "other"}, {"id": "m", **entry}]}}


KINDS = {
    "vllm": (
        {**models(owned_by="vllm", max_model_len=4096), "/version": {"version": "0.33.0"}},
        ServerFacts(kind="vllm", version="0.33.0", context_tokens=4096),
    ),
    "vllm-dev": (
        {
            **models(owned_by="vllm"),
            "/server_info": {"vllm_config": {"model_config": {"logprobs_mode": "processed_logprobs"}}},
        },
        ServerFacts(kind="vllm", logprobs_mode="processed_logprobs"),
    ),
    "sglang": (
        {
            **models(owned_by="sglang", max_model_len=8192),
            "/server_info": {"model_path": "m", "version": "0.5.23"},
        },
        ServerFacts(kind="sglang", version="0.5.23", context_tokens=8192),
    ),
    "older-sglang": (
        {**models(), "/get_model_info": {"model_path": "m", "is_generation": True}},
        ServerFacts(kind="sglang"),
    ),
    "llama.cpp": (
        {
            **models(owned_by="llamacpp", meta={"n_ctx": 32768, "n_ctx_train": 131072}),
            "/props": {"default_generation_settings": {"n_ctx": 8192}, "build_info": "b7000"},
        },
        ServerFacts(kind="llama.cpp", version="b7000", context_tokens=8192),
    ),
    "ollama": (
        {**models(owned_by="library"), "/api/version": {"version": "0.14.1"}},
        ServerFacts(kind="ollama", version="0.14.1"),
    ),
    "openrouter": (
        models(context_length=200_000, top_provider={"context_length": 100_000}),
        ServerFacts(kind="openrouter", context_tokens=100_000),
    ),
    "mistral": (
        models(owned_by="mistralai", max_context_length=32768, capabilities={}),
        ServerFacts(kind="mistral", context_tokens=32768),
    ),
    "openai": (models(owned_by="system"), ServerFacts(kind="openai")),
    "gateway": (models(owned_by="openai", max_model_len=True), ServerFacts()),
    "nothing": ({}, ServerFacts()),
    "odd": (
        {"/v1/models": [1, None], "/version": PlainTextResponse("<html>"), "/props": [], "/api/version": {}},
        ServerFacts(),
    ),
}


@cases("name", KINDS)
async def test_a_server_is_what_it_says(name):
    pages, facts = KINDS[name]
    async with saying(pages) as server:
        assert await examine_server(server, "m") == facts


async def test_a_server_that_is_not_there_could_not_be_examined():
    server = ModelServer(base_url="http://127.0.0.1:9/v1", api_key="k", tries=1)
    with pytest.raises(ServerAway, match="could not be examined"):
        await examine_server(server, "m")
    await server.aclose()


VLLM, SGLANG = ServerFacts(kind="vllm"), ServerFacts(kind="sglang")
PLAIN = {"temperature": 1.0, "top_p": 1.0}


@cases(
    ("sampling", "facts"),
    [
        (PLAIN, VLLM),
        (PLAIN | {"top_k": -1, "stop": ["x"]}, VLLM),
        (PLAIN | {"temperature": 0.5}, SGLANG),
        (PLAIN | {"temperature": 0.5}, ServerFacts(kind="vllm", logprobs_mode="processed_logprobs")),
    ],
    ids=["plain", "neutral", "sglang", "processed"],
)
def test_logprobs_of_what_is_sampled_are_no_problem(sampling, facts):
    assert logprobs_warning(sampling, facts) is None


@cases(
    ("sampling", "facts", "named"),
    [
        (PLAIN | {"temperature": 0.5}, VLLM, "temperature 0.5: vLLM's logprobs"),
        (
            PLAIN | {"temperature": 0.5},
            ServerFacts(kind="vllm", logprobs_mode="raw_logprobs"),
            "--logprobs-mode",
        ),
        (PLAIN | {"top_p": 0.9, "top_k": 5}, SGLANG, "top_p 0.9, top_k 5: SGLang's"),
        (PLAIN | {"repetition_penalty": 1.1}, ServerFacts(), "repetition_penalty 1.1: the server's"),
        (PLAIN | {"repeat_penalty": 1.1}, ServerFacts(kind="llama.cpp"), "repeat_penalty 1.1: llama.cpp's"),
    ],
    ids=["vllm", "raw", "sglang", "unknown", "llama.cpp"],
)
def test_settings_that_logprobs_do_not_follow_are_named_with_what_to_change(sampling, facts, named):
    assert named in logprobs_warning(sampling, facts)


# The look before a run.


@cases(
    ("models", "problem"),
    [
        (failed(401, "bad key"), r"refuses the API key \(401\): bad key"),
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


async def test_an_unnamed_model_is_the_only_one_of_its_server():
    async with served(ok(), models=JSONResponse({"data": [{"id": "one/b"}]}), model=UNNAMED_MODEL) as (
        _,
        policy,
    ):
        await policy.check()
    assert policy.model == "one/b"


async def test_an_unnamed_model_of_several_is_refused_with_their_names():
    listed = JSONResponse({"data": [{"id": "b"}, {"id": "a"}]})
    async with served(ok(), models=listed, model=UNNAMED_MODEL) as (_, policy):
        with pytest.raises(ConfigError, match="has 2 models; set model_name to one of them: a, b"):
            await policy.check()


async def test_the_check_accepts_a_server_without_a_model_list_that_refuses_an_empty_request():
    async with served(failed(400, "model is missing"), models=failed(404)) as (server, policy):
        await policy.check()
    assert server.asked == [{}]


@cases(
    "models",
    [
        failed(500, "Internal Server Error"),
        JSONResponse({"object": "list", "data": []}),
        JSONResponse([1]),
        JSONResponse({"ok": True}),
    ],
    ids=["500", "empty", "no names", "no list"],
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
        (JSONResponse([1]), failed(500, "ah"), r"does not speak the OpenAI API; its /models is \[1\]"),
        (JSONResponse({"data": []}), failed(500, "ah"), "answered 500: ah"),
        (JSONResponse({"data": []}), failed(403, "ah"), "refuses the API key"),
        (failed(404), JSONResponse({"ok": True}), "answers a chat with"),
    ],
    ids=["broken", "other", "empty", "key", "no chat completion"],
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
        {"data": [{"id": "models/m"}]},
        {"models": [{"name": "m:latest", "model": "m:latest"}]},
        {"object": "list", "data": [{"id": "m"}], "models": [{"name": "m"}]},
    ],
    ids=["Together", "names", "a prefix", "ollama", "llama.cpp"],
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


# Its tokenizer.


def tokenizing(change=lambda ids: ids, kind="vllm"):
    """A server with the embedded tokenizer, whose ids are changed."""

    async def tokenize(request):
        text = (await request.json())["content" if kind == "llama.cpp" else "prompt"]
        return JSONResponse({"tokens": change(TOKENIZER.encode(text, add_special_tokens=False).ids)})

    return Starlette(routes=[Route("/tokenize", tokenize, methods=["POST"])])


async def compared(app, kind="vllm"):
    async with running_server(app) as base_url:
        server = ModelServer(base_url=base_url, api_key="k", tries=1)
        try:
            return await refuse_other_tokenizer(server, "m", kind, TOKENIZER)
        finally:
            await server.aclose()


@cases("kind", ["vllm", "sglang", "llama.cpp"])
async def test_a_tokenizer_with_the_ids_of_the_server_is_its_own(kind):
    assert await compared(tokenizing(kind=kind), kind)


async def test_a_server_without_tokenize_is_not_compared():
    assert not await compared(Starlette())


async def test_a_tokenizer_that_differs_in_one_text_is_refused_with_both_ids():
    def change(ids):
        return ids if len(ids) != len(emoji) else [*ids[:-1], 7]

    emoji = TOKENIZER.encode(TEXTS[16], add_special_tokens=False).ids
    with pytest.raises(ConfigError) as refused:
        await compared(tokenizing(change))
    text = str(refused.value)
    assert f"{TEXTS[16]!r} has from token {len(emoji) - 1} on the ids [7] there, [{emoji[-1]}] here" in text
    assert "\n" not in text
