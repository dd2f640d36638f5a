"""An OpenAI-compatible model server whose model is a script.

It answers like vLLM does, token ids and logprobs included, and with the same tokens that a `ScriptedPolicy`
in the process gives for the same seed. So the whole way over HTTP can be tried without a model.
"""

import asyncio
import hashlib
import socket
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import uvicorn
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from environments.inference.openai_wire import ChatRequest, first_problem
from environments.policy.base import CompletionRequest
from environments.policy.rendering.chatml import ChatMLRenderer
from environments.policy.rendering.long_text import rendered
from environments.policy.scripted import Script, ScriptedPolicy, generic_script
from environments.trajectory import Completion, Message

ScriptFor = Callable[[Sequence[Message]], Script | None]
"""The script that plays the model in a conversation; `None` for the generic one."""

_DEFAULT_MAX_TOKENS = 1024


def mock_app(
    script_for: ScriptFor,
    *,
    skill: float,
    renderer: ChatMLRenderer,
    model: str = "scripted",
    context_tokens: int | None = None,
    api_key: str | None = None,
) -> Starlette:
    """The server as an ASGI app.

    Args:
        script_for: chooses the script by the conversation of a request.
        skill: passed to the script, from 0 to 1.
        renderer: makes the token ids.
        model: the one name that requests may ask for.
        context_tokens: a prompt of that many tokens is refused as too long; a completion is cut there.
        api_key: when given, requests must bear it.
    """

    async def models(request: Request) -> JSONResponse:
        _authorize(request, api_key)
        entry = {"id": model, "object": "model", "created": 0, "owned_by": "turnwise"}
        return JSONResponse({"object": "list", "data": [entry]})

    async def chat_completions(request: Request) -> JSONResponse:
        _authorize(request, api_key)
        asked = _read(await request.body())
        if asked.model != model:
            raise _RefusalError(404, f"The model `{asked.model}` does not exist.", "model_not_found")
        call = _call_of(asked)
        if context_tokens is not None:
            fitted = partial(_fitted, call, context_tokens, renderer)
            call = await rendered(fitted, renderer, call.messages, max_tokens=None)
        script = script_for(call.messages) or generic_script
        completion = await ScriptedPolicy(script, skill=skill, renderer=renderer).complete(call)
        return JSONResponse(_reply(asked, completion, renderer))

    return Starlette(
        routes=[
            Route("/v1/models", models, methods=["GET"]),
            Route("/v1/chat/completions", chat_completions, methods=["POST"]),
        ],
        exception_handlers={_RefusalError: _refuse},
    )


@asynccontextmanager
async def running_mock_server(app: ASGIApp) -> AsyncGenerator[str]:
    """Serve `app` in this event loop on a free port of 127.0.0.1; gives the base URL, with `/v1`."""
    # With the protocol named, asyncio turns Nagle's algorithm off; it would cost 40 ms per answer.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(2048)
        server = _EmbeddedServer(uvicorn.Config(app, log_level="error", lifespan="off"))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        await server.ready.wait()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        finally:
            server.should_exit = True
            await serving


class _EmbeddedServer(uvicorn.Server):
    """A server that leaves the process's signal handlers alone and says when it is ready."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


class _RefusalError(Exception):
    """An error answer in OpenAI's shape."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code


async def _refuse(_: Request, refusal: Exception) -> JSONResponse:
    assert isinstance(refusal, _RefusalError)
    error = {"message": refusal.message, "type": "invalid_request_error", "param": None, "code": refusal.code}
    return JSONResponse({"error": error}, status_code=refusal.status)


def _authorize(request: Request, api_key: str | None) -> None:
    if api_key is not None and request.headers.get("authorization") != f"Bearer {api_key}":
        raise _RefusalError(401, "Incorrect API key provided.", "invalid_api_key")


def _read(body: bytes) -> ChatRequest:
    try:
        return ChatRequest.model_validate_json(body)
    except ValidationError as error:
        raise _RefusalError(400, first_problem(error)) from error


def _call_of(asked: ChatRequest) -> CompletionRequest:
    messages = tuple(
        message.to_message(f"call_{position}") for position, message in enumerate(asked.messages)
    )
    return CompletionRequest(
        messages=messages,
        tools=tuple(tool.to_spec() for tool in asked.tools or []),
        seed=asked.seed or 0,
        max_tokens=asked.max_completion_tokens or asked.max_tokens or _DEFAULT_MAX_TOKENS,
    )


def _fitted(call: CompletionRequest, context_tokens: int, renderer: ChatMLRenderer) -> CompletionRequest:
    """The call with no more tokens to sample than the context has room for."""
    room = context_tokens - len(renderer.prompt_ids(call.messages, call.tools))
    if room <= 0:
        raise _RefusalError(
            400,
            f"This model's maximum context length is {context_tokens} tokens. However, your messages "
            f"resulted in {context_tokens - room} tokens.",
            "context_length_exceeded",
        )
    return replace(call, max_tokens=min(call.max_tokens, room))


def _reply(asked: ChatRequest, completion: Completion, renderer: ChatMLRenderer) -> dict[str, Any]:
    message = completion.message.to_openai()
    if message.get("tool_calls") and not message["content"]:
        message["content"] = None
    choice: dict[str, Any] = {
        "index": 0,
        "message": message,
        "finish_reason": completion.finish_reason,
        "logprobs": _logprobs(completion, renderer) if asked.logprobs else None,
    }
    prompt, sampled = len(completion.prompt_ids), len(completion.token_ids)
    reply: dict[str, Any] = {
        "id": f"chatcmpl-{hashlib.sha256(repr(completion).encode()).hexdigest()[:24]}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": asked.model,
        "choices": [choice],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": sampled,
            "total_tokens": prompt + sampled,
        },
    }
    if asked.return_token_ids:
        reply["prompt_token_ids"] = completion.prompt_ids
        choice["token_ids"] = completion.token_ids
    return reply


def _logprobs(completion: Completion, renderer: ChatMLRenderer) -> dict[str, Any]:
    logprobs = completion.logprobs or ()
    return {
        "content": [
            {"token": renderer.decode([token_id]), "logprob": logprob, "bytes": None, "top_logprobs": []}
            for token_id, logprob in zip(completion.token_ids, logprobs, strict=True)
        ]
    }
