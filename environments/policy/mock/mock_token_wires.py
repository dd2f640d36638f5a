"""Where mock servers take and give token ids, in the formats of vLLM and SGLang."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from environments.inference.http_client import list_in, mapping
from environments.policy.rendering.chatml import RESPONSE, TOOLS, ChatMLRenderer
from environments.trajectory import Message
from tools.calls import ToolSpec

ServerKind = Literal["plain", "vllm", "sglang"]
Answer = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Of the JSON object of a request, the JSON object of its reply."""

DEFAULT_VERSION = "default"
"""The weights of vLLM and SGLang, until they are given another version."""
_BEFORE_TOOLS = "# Tools\n\nYou may call these functions. Their signatures:\n"


class RefusalError(Exception):
    """An error answer in OpenAI's shape."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


def too_long(context_tokens: int, prompt_tokens: int) -> RefusalError:
    """The answer of vLLM to a prompt that does not fit."""
    message = (
        f"This model's maximum context length is {context_tokens} tokens. However, your messages resulted in "
        f"{prompt_tokens} tokens."
    )
    return RefusalError(400, message, "context_length_exceeded")


@dataclass(frozen=True, slots=True, kw_only=True)
class IdsRequest:
    """What a model goes on from."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    seed: int
    stop_ids: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledIds:
    """What a model sampled."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]

    def finish_reason(self, stops: frozenset[int]) -> str:
        """`stop` for a turn that ends with a stop token, else `length`."""
        return "stop" if self.token_ids[-1] in stops else "length"


Sampler = Callable[[IdsRequest], Awaitable[SampledIds]]
"""A model that goes on from ids. It raises ValueError for those that it cannot go on from."""


@dataclass(kw_only=True)
class MockWires:
    """The token wires of one mock server, and the version of its weights."""

    sampler: Sampler
    model: str
    context_tokens: int | None
    version: str = DEFAULT_VERSION

    def posts(self, kind: ServerKind) -> Mapping[str, Answer]:
        """The paths of a kind of server, beside those of OpenAI's chat."""
        shared: dict[str, Answer] = {"/update_weight_version": self._update_version}
        if kind == "vllm":
            return shared | {
                "/v1/completions": self._completions,
                "/inference/v1/generate": self._vllm_generate,
            }
        return shared | {"/generate": self._sglang_generate} if kind == "sglang" else shared

    def weight_versions(self, asked: Mapping[str, Any], sampled: int) -> dict[str, Any]:
        """What a choice of vLLM holds for so many sampled tokens, where it is asked."""
        if not asked.get("return_weight_versions"):
            return {}
        return {"weight_versions": [{"version": self.version, "start": 0, "end": sampled}]}

    async def chat(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """SGLang's `/v1/chat/completions` for a request with `input_ids`."""
        asked, sampled = await self._sampled(body.get("input_ids"), body, body.get("max_tokens", 16))
        choice: dict[str, Any] = {
            "index": 0,
            "message": {"role": "assistant", "content": ""},
            "finish_reason": sampled.finish_reason(asked.stop_ids),
            "matched_stop": _matched(sampled, asked),
            "logprobs": {"content": [{"token": "?", "logprob": each} for each in sampled.logprobs]},
        }
        if body.get("return_token_ids"):
            choice |= {"response_token_ids": sampled.token_ids, "prompt_token_ids": asked.prompt_ids}
        if body.get("return_meta_info"):
            choice["meta_info"] = self._meta_info(sampled, asked)
        usage = usage_of(len(asked.prompt_ids), len(sampled.token_ids))
        return {"object": "chat.completion", "choices": [choice], "usage": usage}

    async def _update_version(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """SGLang's path: `{"new_version": "step-2"}`."""
        version = body.get("new_version")
        if not isinstance(version, str):
            raise RefusalError(400, "new_version is missing, or no text")
        self.version = version
        return {"success": True, "new_version": version}

    async def _completions(self, body: Mapping[str, Any]) -> dict[str, Any]:
        self._check_model(body)
        asked, sampled = await self._sampled(body.get("prompt"), body, body.get("max_tokens", 16))
        choice = self._vllm_choice(sampled, asked, body)
        choice["text"] = ""
        if body.get("logprobs") is not None:
            choice["logprobs"] = {
                "tokens": [f"token_id:{each}" for each in sampled.token_ids],
                "token_logprobs": sampled.logprobs,
            }
        if body.get("return_token_ids"):
            choice |= {"token_ids": sampled.token_ids, "prompt_token_ids": asked.prompt_ids}
        usage = usage_of(len(asked.prompt_ids), len(sampled.token_ids))
        return {"object": "text_completion", "choices": [choice], "usage": usage}

    async def _vllm_generate(self, body: Mapping[str, Any]) -> dict[str, Any]:
        self._check_model(body)
        params = mapping(body.get("sampling_params"))
        asked, sampled = await self._sampled(body.get("token_ids"), params, params.get("max_tokens", 16))
        choice = self._vllm_choice(sampled, asked, {"return_weight_versions": True})
        choice["token_ids"] = sampled.token_ids
        if params.get("logprobs") is not None:
            choice["logprobs"] = {
                "content": [
                    {"logprob": logprob, "token_id": token_id}
                    for token_id, logprob in zip(sampled.token_ids, sampled.logprobs, strict=True)
                ]
            }
        return {"request_id": "generate", "choices": [choice], "usage": None}

    async def _sglang_generate(self, body: Mapping[str, Any]) -> dict[str, Any]:
        params = mapping(body.get("sampling_params"))
        max_tokens = params.get("max_new_tokens", 128)
        asked, sampled = await self._sampled(body.get("input_ids"), params, max_tokens)
        meta = self._meta_info(sampled, asked)
        if not body.get("return_logprob"):
            del meta["output_token_logprobs"]
        return {"text": "", "output_ids": sampled.token_ids, "meta_info": meta}

    def _check_model(self, body: Mapping[str, Any]) -> None:
        if body.get("model") != self.model:
            raise RefusalError(404, f"The model `{body.get('model')}` does not exist.", "model_not_found")

    async def _sampled(
        self, ids: object, fields: Mapping[str, Any], max_tokens: object
    ) -> tuple[IdsRequest, SampledIds]:
        given = list_in(ids)
        if not given or not set(map(type, given)) <= {int}:
            raise RefusalError(400, "the prompt is no list of token ids")
        if not isinstance(max_tokens, int) or max_tokens < 1:
            raise RefusalError(400, f"max_tokens must be at least 1, got {max_tokens!r:.40}")
        if self.context_tokens is not None and len(given) + max_tokens > self.context_tokens:
            raise too_long(self.context_tokens, len(given))
        seed = fields.get("seed", fields.get("sampling_seed"))
        asked = IdsRequest(
            prompt_ids=tuple(given),
            max_tokens=max_tokens,
            seed=seed if isinstance(seed, int) else 0,
            stop_ids=frozenset(fields.get("stop_token_ids") or ()),
        )
        try:
            return asked, await self.sampler(asked)
        except ValueError as error:
            raise RefusalError(400, str(error)) from error

    def _vllm_choice(self, sampled: SampledIds, asked: IdsRequest, body: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "index": 0,
            "finish_reason": sampled.finish_reason(asked.stop_ids),
            "stop_reason": _matched(sampled, asked),
            "logprobs": None,
            **self.weight_versions(body, len(sampled.token_ids)),
        }

    def _meta_info(self, sampled: SampledIds, asked: IdsRequest) -> dict[str, Any]:
        finish: dict[str, Any] = {"type": sampled.finish_reason(asked.stop_ids)}
        if finish["type"] == "stop":
            finish["matched"] = sampled.token_ids[-1]
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


def usage_of(prompt: int, sampled: int) -> dict[str, int]:
    """The tokens of a reply, as OpenAI counts them."""
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def _matched(sampled: SampledIds, asked: IdsRequest) -> int | None:
    return sampled.token_ids[-1] if sampled.finish_reason(asked.stop_ids) == "stop" else None


def conversation_of(
    prompt_ids: Sequence[int], renderer: ChatMLRenderer
) -> tuple[tuple[Message, ...], tuple[ToolSpec, ...]]:
    """The messages and the offered tools, the reverse of `ChatMLRenderer.prompt_ids`.

    Call ids are not in the tokens: the calls of a message are named by where they stand.

    Raises:
        ValueError: the ids are no such prompt.
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
            said = renderer.parse(block[len(header) :])
            position = len(messages)
            calls = tuple(
                replace(call, id=f"call_{position}_{index}", status="ok", span=None)
                for index, call in enumerate(said.tool_calls)
            )
            messages.append(replace(said, tool_calls=calls))
            unanswered = [call.id for call in calls]
            continue
        end = next((index for index, each in enumerate(block) if each in renderer.stop_ids), len(block))
        role, _, content = renderer.decode(block[:end]).partition("\n")
        if role == "tool":
            content = content.removeprefix(f"{RESPONSE[0]}\n").removesuffix(f"\n{RESPONSE[1]}")
            call_id = unanswered.pop(0) if unanswered else None
            messages.append(Message(role="tool", content=content, tool_call_id=call_id))
            continue
        if role not in ("system", "user"):
            raise ValueError(f"the prompt has a message of role {role[:40]!r}")
        if role == "system" and _BEFORE_TOOLS in content:
            content, _, listed = content.rpartition(f"{_BEFORE_TOOLS}{TOOLS[0]}\n")
            tools = _tools(listed.partition(f"\n{TOOLS[1]}")[0])
            content = content.removesuffix("\n\n")
        if content or role == "user":
            messages.append(Message(role=role, content=content))
    return tuple(messages), tools


def _tools(listed: str) -> tuple[ToolSpec, ...]:
    """The tools of their signatures, one a line."""
    functions = [cast("dict[str, Any]", json.loads(line))["function"] for line in listed.splitlines()]
    return tuple(ToolSpec(**function) for function in functions)
