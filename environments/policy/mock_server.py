"""An OpenAI-compatible mock server that samples from a script.

It speaks chat and the token wires of vLLM, SGLang and llama.cpp, with ids and logprobs equal to those of an
in-process `ScriptedPolicy` with the same seed.
"""

import hashlib
import json
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, cast

import orjson
from pydantic import BaseModel, Field, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from environments.policy.base import CompletionRequest, Constraint
from environments.policy.inference.http_client import list_in, mapping
from environments.policy.inference.written_messages import MessageError, parse_entry, parse_tools
from environments.policy.rendering.chatml import RESPONSE, TOOLS, ChatMLRenderer, first_stop, run_rendering
from environments.policy.row_prompt import end_of_stop, first_stop_text
from environments.policy.scripted import Script, ScriptedPolicy, generic_script
from environments.trajectory import Completion, Message
from tools.calls import ToolSpec
from tools.errors import ConfigError

ServerKind = Literal["plain", "vllm", "sglang", "llama.cpp"]
ScriptFor = Callable[[Sequence[Message]], Script | None]
Answer = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]

_DEFAULT_MAX_TOKENS = 1024
_DEFAULT_WINDOW = 131_072
_DEFAULT_VERSION = "default"
_CLAMPED = -9999.0
"""What vLLM sends for a log-probability of -inf, which JSON does not have."""
_ABOUT = {
    "vllm": ("/version",),
    "sglang": ("/server_info", "/get_model_info"),
    "llama.cpp": ("/props",),
    "plain": (),
}
_VERSIONS = {"vllm": "0.33.0", "sglang": "0.5.23", "plain": ""}
_BEFORE_TOOLS = "# Tools\n\nYou may call these functions. Their signatures:\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class IdsRequest:
    prompt_ids: tuple[int, ...]
    max_tokens: int
    seed: int
    stop_ids: frozenset[int]
    stops: tuple[str, ...] = ()
    constraint: Constraint | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledIds:
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop_text: str | None = None
    """The stop text at which sampling ended; None if it ended otherwise."""
    prompt_logprobs: tuple[float, ...] = ()
    """One for each of the prompt's last tokens, those of the text that is scored; empty if none is."""


Sampler = Callable[[IdsRequest], Awaitable[SampledIds]]
"""Samples from ids; ValueError for ids that it cannot continue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MockSettings:
    model: str = "scripted"
    context_tokens: int | None = None
    kind: ServerKind = "plain"
    sampler: Sampler | None = None
    """Samples from token ids; None: parse the conversation and use the script."""


class ChatRequest(BaseModel):
    messages: list[Any] = Field(min_length=1)
    tools: list[dict[str, Any]] | None = None
    seed: int | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    n: Literal[1] | None = None
    stream: Literal[False] | None = None
    logprobs: bool | None = None
    return_token_ids: bool | None = None
    stop: str | list[str] | None = None
    include_stop_str_in_output: bool = False
    no_stop_trim: bool = False
    response_format: dict[str, Any] | None = None
    tool_choice: Any = None

    def to_call(self) -> CompletionRequest:
        messages = tuple(
            written.message
            for index, entry in enumerate(self.messages)
            for written in parse_entry(entry, f"messages[{index}]", index)
        )
        seed = self.seed or 0
        # A number that no call in the history has: shortened histories may have equal lengths.
        ours = re.compile(rf"call_{seed}_(\d{{1,18}})_\d+")
        found = (ours.fullmatch(call.id) for message in messages for call in message.tool_calls)
        return CompletionRequest(
            messages=messages,
            position=max([len(messages), *(int(each[1]) + 1 for each in found if each)]),
            tools=parse_tools(self.tools),
            seed=seed,
            max_tokens=self.max_completion_tokens or self.max_tokens or _DEFAULT_MAX_TOKENS,
            stops=_texts(self.stop),
            constraint=_constraint_of(self.model_dump()),
        )


class RefusalError(Exception):
    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


def mock_app(
    script_for: ScriptFor,
    *,
    skill: float,
    renderer: ChatMLRenderer,
    settings: MockSettings = MockSettings(),
) -> Starlette:
    """Return the server as an ASGI app; `script_for` chooses a script per conversation."""
    mock = _Mock(script_for=script_for, skill=skill, renderer=renderer, settings=settings)
    posts: dict[str, Answer] = {
        "/v1/chat/completions": mock.chat,
        "/update_weight_version": mock.update_version,
    }
    if settings.kind != "plain":
        posts["/tokenize"] = mock.tokenize
    if settings.kind == "vllm":
        posts |= {"/v1/completions": mock.completions, "/inference/v1/generate": mock.vllm_generate}
    elif settings.kind == "sglang":
        posts["/generate"] = mock.sglang_generate
    elif settings.kind == "llama.cpp":
        posts["/completion"] = mock.llama_cpp_completion
    gets = {"/v1/models": mock.models, **dict.fromkeys(_ABOUT[settings.kind], mock.about)}
    return Starlette(
        routes=[
            Route(path, partial(_respond, answer), methods=[method])
            for method, answers in (("POST", posts), ("GET", gets))
            for path, answer in answers.items()
        ]
    )


async def _respond(answer: Answer, request: Request) -> JSONResponse:
    try:
        body: object = orjson.loads(await request.body() or b"{}")
        if not isinstance(body, dict):
            raise RefusalError(400, "the request is not an object")
        return JSONResponse(await answer(cast("dict[str, Any]", body)))
    except orjson.JSONDecodeError as error:
        refusal = RefusalError(400, f"no JSON: {error}")
    except RefusalError as error:
        refusal = error
    about = {"message": str(refusal), "type": "invalid_request_error", "param": None, "code": refusal.code}
    return JSONResponse({"error": about}, status_code=refusal.status)


@dataclass(kw_only=True)
class _Mock:
    script_for: ScriptFor
    skill: float
    renderer: ChatMLRenderer
    settings: MockSettings
    version: str = _DEFAULT_VERSION

    async def models(self, _: Mapping[str, Any]) -> dict[str, Any]:
        kind = self.settings.kind
        entry: dict[str, Any] = {"id": self.settings.model, "object": "model", "created": 0}
        entry["owned_by"] = "turnwise" if kind == "plain" else kind.replace(".", "")
        if kind in ("vllm", "sglang"):
            entry["max_model_len"] = self.settings.context_tokens or _DEFAULT_WINDOW
        return {"object": "list", "data": [entry]}

    async def about(self, _: Mapping[str, Any]) -> dict[str, Any]:
        if self.settings.kind == "llama.cpp":
            window = self.settings.context_tokens or _DEFAULT_WINDOW
            return {"build_info": "b9000", "default_generation_settings": {"n_ctx": window}}
        return {"version": _VERSIONS[self.settings.kind], "model_path": self.settings.model}

    async def tokenize(self, body: Mapping[str, Any]) -> dict[str, Any]:
        text = Message(role="assistant", content=str(body.get("prompt", body.get("content"))))
        ids = self.renderer.completion_ids(text, stopped=False)
        return {"tokens": ids, "count": len(ids)}

    async def update_version(self, body: Mapping[str, Any]) -> dict[str, Any]:
        version = body.get("new_version")
        if not isinstance(version, str):
            raise RefusalError(400, "new_version is missing, or no text")
        self.version = version
        return {"success": True, "new_version": version}

    async def chat(self, body: Mapping[str, Any]) -> dict[str, Any]:
        try:
            asked = ChatRequest.model_validate(body)
            call = asked.to_call()
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise RefusalError(400, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
        except MessageError as error:
            raise RefusalError(400, str(error)) from error
        self._check_model(body)
        kind = self.settings.kind
        if kind == "sglang" and "input_ids" in body:
            return await self._sglang_chat(body)
        if (window := self.settings.context_tokens) is not None:
            count = partial(self.renderer.prompt_tokens, call.messages, call.tools)
            tokens = await run_rendering(count, self.renderer, call.messages, max_tokens=None)
            if tokens >= window:
                raise _too_long(window, tokens)
            call = replace(call, max_tokens=min(call.max_tokens, window - tokens))
        completion = await self._policy(call.messages).complete(call)
        reply = self._chat_reply(asked, completion)
        if kind == "vllm":
            reply["choices"][0] |= self._weight_versions(body, reply["usage"]["completion_tokens"])
        elif kind == "sglang" or self.version != _DEFAULT_VERSION:
            reply["metadata"] = {"weight_version": self.version}
        return reply

    def _chat_reply(self, asked: ChatRequest, completion: Completion) -> dict[str, Any]:
        message = completion.message.to_openai()
        stop = first_stop_text(completion.message.content, _texts(asked.stop))
        if stop is not None and not (asked.include_stop_str_in_output or asked.no_stop_trim):
            message["content"] = completion.message.content[: stop[0]]
        if message.get("tool_calls") and not message["content"]:
            message["content"] = None
        logprobs: list[dict[str, Any]] = [
            {"token": self.renderer.decode([token_id]), "logprob": logprob, "bytes": None, "top_logprobs": []}
            for token_id, logprob in zip(completion.token_ids, completion.logprobs or (), strict=True)
        ]
        choice: dict[str, Any] = {
            "index": 0,
            "message": message,
            "finish_reason": completion.finish_reason,
            "logprobs": {"content": logprobs} if asked.logprobs else None,
        }
        reply: dict[str, Any] = {
            "id": f"chatcmpl-{hashlib.sha256(repr(completion).encode()).hexdigest()[:24]}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": self.settings.model,
            "choices": [choice],
            "usage": _usage(len(completion.prompt_ids), len(completion.token_ids)),
        }
        if asked.return_token_ids and self.settings.kind != "llama.cpp":
            reply["prompt_token_ids"] = completion.prompt_ids
            choice["token_ids"] = completion.token_ids
        return reply

    async def _sglang_chat(self, body: Mapping[str, Any]) -> dict[str, Any]:
        asked, sampled = await self._sample(body.get("input_ids"), body, body.get("max_tokens", 16))
        choice: dict[str, Any] = {
            "index": 0,
            "message": {"role": "assistant", "content": ""},
            "finish_reason": finish_reason(sampled, asked),
            "matched_stop": _stopped_by(sampled, asked),
            "logprobs": {"content": [{"token": "?", "logprob": each} for each in sampled.logprobs]},
        }
        if body.get("return_token_ids"):
            choice |= {"response_token_ids": sampled.token_ids, "prompt_token_ids": asked.prompt_ids}
        if body.get("return_meta_info"):
            choice["meta_info"] = self._meta_info(sampled, asked)
        usage = _usage(len(asked.prompt_ids), len(sampled.token_ids))
        return {"object": "chat.completion", "choices": [choice], "usage": usage}

    async def sglang_generate(self, body: Mapping[str, Any]) -> dict[str, Any]:
        params = mapping(body.get("sampling_params"))
        max_tokens = params.get("max_new_tokens", 128)
        start = body.get("logprob_start_len", -1)
        asked, sampled = await self._sample(body.get("input_ids"), params, max_tokens, scores=start >= 0)
        meta = self._meta_info(sampled, asked)
        if start >= 0:
            scores = zip(_prompt_logprobs(sampled, asked), asked.prompt_ids, strict=True)
            meta["input_token_logprobs"] = [(each, i, None) for each, i in scores][start:]
        if not body.get("return_logprob"):
            del meta["output_token_logprobs"]
        return {"text": "", "output_ids": sampled.token_ids, "meta_info": meta}

    def _meta_info(self, sampled: SampledIds, asked: IdsRequest) -> dict[str, Any]:
        finish: dict[str, Any] = {"type": finish_reason(sampled, asked)}
        if finish["type"] == "stop":
            finish["matched"] = _stopped_by(sampled, asked)
        else:
            finish["length"] = asked.max_tokens
        return {
            "finish_reason": finish,
            "prompt_tokens": len(asked.prompt_ids),
            "completion_tokens": len(sampled.token_ids),
            "weight_version": self.version,
            "output_token_logprobs": [
                (logprob, token_id, None)
                for token_id, logprob in zip(sampled.token_ids, sampled.logprobs, strict=True)
            ],
        }

    async def completions(self, body: Mapping[str, Any]) -> dict[str, Any]:
        self._check_model(body)
        scores = "prompt_logprobs" in body
        prompt, max_tokens = body.get("prompt"), body.get("max_tokens", 16)
        asked, sampled = await self._sample(prompt, body, max_tokens, scores=scores)
        choice = {**self._vllm_choice(sampled, asked, body), "text": ""}
        choice["prompt_logprobs"] = _vllm_prompt_logprobs(sampled, asked) if scores else None
        if body.get("logprobs") is not None:
            choice["logprobs"] = {
                "tokens": [f"token_id:{each}" for each in sampled.token_ids],
                "token_logprobs": sampled.logprobs,
            }
        if body.get("return_token_ids"):
            choice |= {"token_ids": sampled.token_ids, "prompt_token_ids": asked.prompt_ids}
        usage = _usage(len(asked.prompt_ids), len(sampled.token_ids))
        return {"object": "text_completion", "choices": [choice], "usage": usage}

    async def vllm_generate(self, body: Mapping[str, Any]) -> dict[str, Any]:
        self._check_model(body)
        params = mapping(body.get("sampling_params"))
        scores = "prompt_logprobs" in params
        ids, max_tokens = body.get("token_ids"), params.get("max_tokens", 16)
        asked, sampled = await self._sample(ids, params, max_tokens, scores=scores)
        choice = self._vllm_choice(sampled, asked, {"return_weight_versions": True})
        choice["token_ids"] = sampled.token_ids
        if params.get("logprobs") is not None:
            pairs = zip(sampled.token_ids, sampled.logprobs, strict=True)
            choice["logprobs"] = {"content": [{"logprob": logprob, "token_id": i} for i, logprob in pairs]}
        scored = _vllm_prompt_logprobs(sampled, asked) if scores else None
        return {"request_id": "generate", "choices": [choice], "usage": None, "prompt_logprobs": scored}

    async def llama_cpp_completion(self, body: Mapping[str, Any]) -> dict[str, Any]:
        fields = {**body, "stop_token_ids": self.renderer.stop_ids}
        asked, sampled = await self._sample(body.get("prompt"), fields, body.get("n_predict", 1024))
        scored = list(zip(sampled.token_ids, sampled.logprobs, strict=True))
        if sampled.stop_text is not None:
            # The entries of a stop string are dropped, as many as it has tokens by itself.
            del scored[-len(self.renderer.text_ids(sampled.stop_text)) :]
        ended = "limit" if _stopped_by(sampled, asked) is None else "eos"
        return {
            "tokens": sampled.token_ids if body.get("return_tokens") else [],
            "completion_probabilities": [{"id": i, "logprob": logprob} for i, logprob in scored],
            "tokens_evaluated": len(asked.prompt_ids),
            "stop_type": "word" if sampled.stop_text is not None else ended,
            "stopping_word": sampled.stop_text or "",
        }

    def _vllm_choice(self, sampled: SampledIds, asked: IdsRequest, body: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "index": 0,
            "finish_reason": finish_reason(sampled, asked),
            "stop_reason": _stopped_by(sampled, asked),
            "logprobs": None,
            **self._weight_versions(body, len(sampled.token_ids)),
        }

    def _weight_versions(self, body: Mapping[str, Any], sampled: int) -> dict[str, Any]:
        if not body.get("return_weight_versions"):
            return {}
        return {"weight_versions": [{"version": self.version, "start": 0, "end": sampled}]}

    def _check_model(self, body: Mapping[str, Any]) -> None:
        if body.get("model") != self.settings.model:
            raise RefusalError(404, f"The model `{body.get('model')}` does not exist.", "model_not_found")

    async def _sample(
        self, ids: object, fields: Mapping[str, Any], max_tokens: object, *, scores: bool = False
    ) -> tuple[IdsRequest, SampledIds]:
        given, context_tokens = list_in(ids), self.settings.context_tokens
        if not given or not set(map(type, given)) <= {int}:
            raise RefusalError(400, "the prompt is not a list of token ids")
        if not isinstance(max_tokens, int) or max_tokens < 1:
            raise RefusalError(400, f"max_tokens must be at least 1, got {max_tokens!r:.40}")
        if context_tokens is not None and len(given) + max_tokens > context_tokens:
            raise _too_long(context_tokens, len(given))
        seed = fields.get("seed", fields.get("sampling_seed"))
        asked = IdsRequest(
            prompt_ids=tuple(given),
            max_tokens=max_tokens,
            seed=seed if isinstance(seed, int) else 0,
            stop_ids=frozenset(fields.get("stop_token_ids") or ()),
            stops=_texts(fields.get("stop")),
            constraint=_constraint_of(fields),
        )
        for forced in [each for each, bias in list_in(fields.get("logit_bias")) if bias > 0]:
            return asked, SampledIds(token_ids=(forced,), logprobs=(0.0,))
        try:
            if self.settings.sampler is not None:
                return asked, await self.settings.sampler(asked)
            end = len(asked.prompt_ids)
            if scores:  # the text of the last, open assistant message
                header = self.renderer.prompt_ids((), ())
                starts = range(end, len(header) - 1, -1)
                end = next((at for at in starts if asked.prompt_ids[at - len(header) : at] == header), end)
            messages, tools = conversation_of(asked.prompt_ids[:end], self.renderer)
        except ValueError as error:
            raise RefusalError(400, str(error)) from error
        call = CompletionRequest(
            messages=messages, tools=tools, seed=asked.seed, max_tokens=max_tokens, stops=asked.stops,
            constraint=asked.constraint,
        )  # fmt: skip
        policy, text = self._policy(messages), self.renderer.decode(asked.prompt_ids[end:])
        try:
            scored = (await policy.score(call, text)).logprobs if text else ()
        except ConfigError:
            scored = (_CLAMPED,) * (len(asked.prompt_ids) - end)
        completion = await policy.complete(call)
        assert completion.logprobs is not None
        stop = end_of_stop(completion.token_ids, asked.stops, self.renderer.decode)
        return asked, SampledIds(
            token_ids=completion.token_ids,
            logprobs=completion.logprobs,
            stop_text=stop and stop[1],
            prompt_logprobs=scored,
        )

    def _policy(self, messages: Sequence[Message]) -> ScriptedPolicy:
        script = self.script_for(messages) or generic_script
        return ScriptedPolicy(script, skill=self.skill, renderer=self.renderer)


def _too_long(context_tokens: int, prompt_tokens: int) -> RefusalError:
    message = (
        f"This model's maximum context length is {context_tokens} tokens. However, your messages resulted in "
        f"{prompt_tokens} tokens."
    )
    return RefusalError(400, message, "context_length_exceeded")


def _prompt_logprobs(sampled: SampledIds, asked: IdsRequest) -> list[float | None]:
    """Return a log-probability for each prompt id, None for those before the scored text."""
    unscored = len(asked.prompt_ids) - len(sampled.prompt_logprobs)
    return [*[None] * unscored, *sampled.prompt_logprobs]


def _vllm_prompt_logprobs(sampled: SampledIds, asked: IdsRequest) -> list[dict[str, Any] | None]:
    pairs = zip(_prompt_logprobs(sampled, asked), asked.prompt_ids, strict=True)
    return [None if each is None else {str(i): {"logprob": each, "rank": 1}} for each, i in pairs]


def _usage(prompt: int, sampled: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def finish_reason(sampled: SampledIds, asked: IdsRequest) -> str:
    return "length" if _stopped_by(sampled, asked) is None else "stop"


def _stopped_by(sampled: SampledIds, asked: IdsRequest) -> str | int | None:
    last = sampled.token_ids[-1]
    return sampled.stop_text or (last if last in asked.stop_ids else None)


def _constraint_of(fields: Mapping[str, Any]) -> Constraint | None:
    form, choice = mapping(fields.get("response_format")), fields.get("tool_choice")
    named = mapping(fields.get("structured_outputs")).get(
        "json", mapping(form.get("json_schema")).get("schema")
    )
    schema = fields.get("json_schema") or named
    schema = json.loads(schema) if isinstance(schema, str) else schema
    schema = {"type": "object"} if form.get("type") == "json_object" else schema
    tool = mapping(mapping(choice).get("function")).get("name", "" if choice == "required" else None)
    is_free = schema is None and tool is None
    return None if is_free else Constraint(fields=("response_format",), schema=schema, tool=tool)


def _texts(stop: Any) -> tuple[str, ...]:
    return (stop,) if isinstance(stop, str) else tuple(stop or ())


def conversation_of(
    prompt_ids: Sequence[int], renderer: ChatMLRenderer
) -> tuple[tuple[Message, ...], tuple[ToolSpec, ...]]:
    """Return (messages, offered tools), the inverse of `ChatMLRenderer.prompt_ids` except for call ids.

    ValueError if the ids are not such a prompt.
    """
    start, *header = renderer.prompt_ids((), ())
    blocks: list[list[int]] = [[]]
    for token_id in prompt_ids:
        if token_id == start:
            blocks.append([])
        else:
            blocks[-1].append(token_id)
    if blocks[0] or blocks.pop() != header:
        raise ValueError("the prompt does not end where an assistant message begins")
    messages: list[Message] = []
    tools: tuple[ToolSpec, ...] = ()
    unanswered: list[str] = []
    for block in blocks[1:]:
        if block[: len(header)] == header:
            turn = renderer.parse(block[len(header) :])
            calls = tuple(
                replace(call, id=f"call_{len(messages)}_{index}", status="ok", span=None)
                for index, call in enumerate(turn.tool_calls)
            )
            messages.append(replace(turn, tool_calls=calls))
            unanswered = [call.id for call in calls]
            continue
        role, _, content = renderer.decode(block[: first_stop(block, renderer.stop_ids)]).partition("\n")
        if role == "tool":
            content = content.removeprefix(f"{RESPONSE[0]}\n").removesuffix(f"\n{RESPONSE[1]}")
            call_id = unanswered.pop(0) if unanswered else None
            messages.append(Message(role="tool", content=content, tool_call_id=call_id))
            continue
        if role not in ("system", "user"):
            raise ValueError(f"the prompt has a message of role {role[:40]!r}")
        if role == "system" and _BEFORE_TOOLS in content:
            content, _, listed = content.rpartition(f"{_BEFORE_TOOLS}{TOOLS[0]}\n")
            signatures = listed.partition(f"\n{TOOLS[1]}")[0].splitlines()
            tools = parse_tools([json.loads(line) for line in signatures])
            content = content.removesuffix("\n\n")
        if content or role == "user":
            messages.append(Message(role=role, content=content))
    return tuple(messages), tools
