"""An OpenAI-compatible model server whose model is a script.

It answers like vLLM does, token ids and logprobs included, and with the same tokens that a `ScriptedPolicy`
in the process gives for the same seed. So the whole way over HTTP can be tried without a model.
"""

import hashlib
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import orjson
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from environments.inference.openai_wire import ChatRequest, first_problem
from environments.policy.base import CompletionRequest
from environments.policy.mock.mock_token_wires import (
    DEFAULT_VERSION,
    Answer,
    IdsRequest,
    MockWires,
    RefusalError,
    SampledIds,
    Sampler,
    ServerKind,
    conversation_of,
    too_long,
    usage_of,
)
from environments.policy.rendering.chatml import ChatMLRenderer, rendered
from environments.policy.scripted import Script, ScriptedPolicy, generic_script
from environments.trajectory import Completion, Message

ScriptFor = Callable[[Sequence[Message]], Script | None]
"""The script that plays the model in a conversation; `None` for the generic one."""

_DEFAULT_MAX_TOKENS = 1024
_DEFAULT_WINDOW = 131_072
_ABOUT = {"vllm": ("/version",), "sglang": ("/server_info", "/get_model_info"), "plain": ()}
"""The paths where a server says what it is."""
_VERSIONS = {"vllm": "0.33.0", "sglang": "0.5.23", "plain": ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class MockSettings:
    """What a mock server is like, apart from its model."""

    model: str = "scripted"
    """The one name that requests may ask for."""
    context_tokens: int | None = None
    """A prompt of that many tokens is refused as too long; a chat completion is cut there."""
    api_key: str | None = None
    """When given, requests must bear it."""
    kind: ServerKind = "plain"
    """`vllm` and `sglang` take token ids where those servers do, and say what they are."""
    sampler: Sampler | None = None
    """Goes on from token ids; unset: the script, of a conversation that the mock's renderer rendered."""


def mock_app(
    script_for: ScriptFor,
    *,
    skill: float,
    renderer: ChatMLRenderer,
    settings: MockSettings = MockSettings(),  # frozen
) -> Starlette:
    """The server as an ASGI app.

    Args:
        script_for: chooses the script by the conversation of a request.
        skill: passed to the script, from 0 to 1.
        renderer: makes the token ids.
        settings: what else the server is like.
    """
    kind, context_tokens = settings.kind, settings.context_tokens
    wires = MockWires(
        sampler=settings.sampler or partial(_scripted, script_for, skill, renderer),
        model=settings.model,
        context_tokens=context_tokens,
    )

    async def models(_: Mapping[str, Any]) -> dict[str, Any]:
        entry: dict[str, Any] = {"id": settings.model, "object": "model", "created": 0}
        window = {} if kind == "plain" else {"max_model_len": context_tokens or _DEFAULT_WINDOW}
        owner = "turnwise" if kind == "plain" else kind
        return {"object": "list", "data": [{**entry, "owned_by": owner, **window}]}

    async def about(_: Mapping[str, Any]) -> dict[str, Any]:
        return {"version": _VERSIONS[kind], "model_path": settings.model}

    async def chat_completions(body: Mapping[str, Any]) -> dict[str, Any]:
        asked = _read(body)
        if asked.model != settings.model:
            raise RefusalError(404, f"The model `{asked.model}` does not exist.", "model_not_found")
        if kind == "sglang" and "input_ids" in body:
            return await wires.chat(body)
        call = _call_of(asked)
        if context_tokens is not None:
            fitted = partial(_fitted, call, context_tokens, renderer)
            call = await rendered(fitted, renderer, call.messages, max_tokens=None)
        script = script_for(call.messages) or generic_script
        completion = await ScriptedPolicy(script, skill=skill, renderer=renderer).complete(call)
        reply = _reply(asked, completion, renderer)
        if kind == "vllm":
            reply["choices"][0] |= wires.weight_versions(body, len(completion.token_ids))
        # A plain server gives no version before it was given one.
        elif kind == "sglang" or wires.version != DEFAULT_VERSION:
            reply["metadata"] = {"weight_version": wires.version}
        return reply

    posts = {"/v1/chat/completions": chat_completions, **wires.posts(kind)}
    gets = {"/v1/models": models, **dict.fromkeys(_ABOUT[kind], about)}
    answering = partial(_answering, api_key=settings.api_key)
    return Starlette(
        routes=[
            *(Route(path, answering(answer), methods=["POST"]) for path, answer in posts.items()),
            *(Route(path, answering(answer), methods=["GET"]) for path, answer in gets.items()),
        ],
        exception_handlers={RefusalError: _refuse},
    )


def _answering(answer: Answer, *, api_key: str | None) -> Callable[[Request], Awaitable[JSONResponse]]:
    """The handler of a path: JSON objects in and out, for requests that bear the key."""

    async def respond(request: Request) -> JSONResponse:
        if api_key is not None and request.headers.get("authorization") != f"Bearer {api_key}":
            raise RefusalError(401, "Incorrect API key provided.", "invalid_api_key")
        try:
            body: object = orjson.loads(await request.body() or b"{}")
        except ValueError as error:
            raise RefusalError(400, f"no JSON: {error}") from error
        if not isinstance(body, dict):
            raise RefusalError(400, "the request is no object")
        return JSONResponse(await answer(cast("dict[str, Any]", body)))

    return respond


async def _refuse(_: Request, refusal: Exception) -> JSONResponse:
    assert isinstance(refusal, RefusalError)
    error = {"message": str(refusal), "type": "invalid_request_error", "param": None, "code": refusal.code}
    return JSONResponse({"error": error}, status_code=refusal.status)


async def _scripted(
    script_for: ScriptFor, skill: float, renderer: ChatMLRenderer, asked: IdsRequest
) -> SampledIds:
    """What the script says after ids, which hold the whole conversation."""
    messages, tools = conversation_of(asked.prompt_ids, renderer)
    policy = ScriptedPolicy(script_for(messages) or generic_script, skill=skill, renderer=renderer)
    completion = await policy.complete(
        CompletionRequest(messages=messages, tools=tools, seed=asked.seed, max_tokens=asked.max_tokens)
    )
    assert completion.logprobs is not None
    return SampledIds(token_ids=completion.token_ids, logprobs=completion.logprobs)


def _read(body: Mapping[str, Any]) -> ChatRequest:
    try:
        return ChatRequest.model_validate(body)
    except ValidationError as error:
        raise RefusalError(400, first_problem(error)) from error


def _call_of(asked: ChatRequest) -> CompletionRequest:
    messages = tuple(
        message.to_message(f"call_{position}") for position, message in enumerate(asked.messages)
    )
    return CompletionRequest(
        messages=messages,
        position=_unused(messages, asked.seed or 0),
        tools=tuple(tool.to_spec() for tool in asked.tools or []),
        seed=asked.seed or 0,
        max_tokens=asked.max_completion_tokens or asked.max_tokens or _DEFAULT_MAX_TOKENS,
    )


def _unused(messages: Sequence[Message], seed: int) -> int:
    """A number that no call in the history has: histories that were cut may have equal lengths."""
    ours = re.compile(rf"call_{seed}_(\d{{1,18}})_\d+")
    found = (ours.fullmatch(call.id) for message in messages for call in message.tool_calls)
    return max([len(messages), *(int(each[1]) + 1 for each in found if each)])


def _fitted(call: CompletionRequest, context_tokens: int, renderer: ChatMLRenderer) -> CompletionRequest:
    """The call with no more tokens to sample than the context has room for."""
    room = context_tokens - len(renderer.prompt_ids(call.messages, call.tools))
    if room <= 0:
        raise too_long(context_tokens, context_tokens - room)
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
    reply: dict[str, Any] = {
        "id": f"chatcmpl-{hashlib.sha256(repr(completion).encode()).hexdigest()[:24]}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": asked.model,
        "choices": [choice],
        "usage": usage_of(len(completion.prompt_ids), len(completion.token_ids)),
    }
    if asked.return_token_ids:
        reply["prompt_token_ids"] = completion.prompt_ids
        choice["token_ids"] = completion.token_ids
    return reply


def _logprobs(completion: Completion, renderer: ChatMLRenderer) -> dict[str, Any]:
    return {
        "content": [
            {"token": renderer.decode([token_id]), "logprob": logprob, "bytes": None, "top_logprobs": []}
            for token_id, logprob in zip(completion.token_ids, completion.logprobs or (), strict=True)
        ]
    }
