"""What a server says of itself, read over HTTP without buying anything."""

from contextlib import asynccontextmanager

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

from environments.policy.inference.chat_reply import logprobs_warning
from environments.policy.inference.model_server import ModelServer
from environments.policy.inference.server_kind import ServerFacts, look
from tests.equipment.running_server import running_server
from tests.tables import cases
from tools.errors import ServerAway


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
    "gateway": (models(owned_by="openai"), ServerFacts()),
    "nothing": ({}, ServerFacts()),
    "odd": (
        {"/v1/models": [1, None], "/version": PlainTextResponse("<html>"), "/props": [], "/api/version": {}},
        ServerFacts(),
    ),
    "odd-window": (models(owned_by="vllm", max_model_len=True), ServerFacts(kind="vllm")),
}


@cases("name", KINDS)
async def test_a_server_is_what_it_says(name):
    pages, facts = KINDS[name]
    async with saying(pages) as server:
        assert await look(server, "m") == facts


async def test_a_server_that_is_not_there_could_not_be_examined():
    server = ModelServer(base_url="http://127.0.0.1:9/v1", api_key="k", tries=1)
    with pytest.raises(ServerAway, match="could not be examined"):
        await look(server, "m")
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
        (PLAIN | {"temperature": 0.5}, ServerFacts(kind="ollama")),
    ],
    ids=["plain", "neutral", "sglang", "processed", "text-only"],
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
    ],
    ids=["vllm", "raw", "sglang", "unknown"],
)
def test_settings_that_logprobs_do_not_follow_are_named_with_what_to_change(sampling, facts, named):
    assert named in logprobs_warning(sampling, facts)
