"""Where mock servers take and give token ids, in the formats of vLLM and SGLang."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import orjson
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from environments.policy.mock.mock_refusal import RefusalError, authorize, too_long
from environments.policy.mock.mock_weights import MockWeights

ServerKind = Literal["plain", "vllm", "sglang"]
DEFAULT_WINDOW = 131_072


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
"""A model: it goes on from ids. It raises ValueError for those that it cannot go on from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MockWires:
    """The token wires of one mock server."""

    sampler: Sampler
    weights: MockWeights
    model: str
    context_tokens: int | None
    api_key: str | None
    string_ids: bool = False
    """vLLM's `/inference/v1/generate` before its logprobs named tokens by an integer."""

    def routes(self, kind: ServerKind) -> list[Route]:
        """The paths of a kind of server, beside those of OpenAI's chat."""
        if kind == "plain":
            return []
        vllm = {
            "/v1/completions": self._completions,
            "/inference/v1/generate": self._vllm_generate,
        }
        posts = vllm if kind == "vllm" else {"/generate": self._sglang_generate}
        gets = ["/version"] if kind == "vllm" else ["/server_info", "/get_model_info"]
        about = {"version": "0.33.0" if kind == "vllm" else "0.5.23", "model_path": self.model}
        return [
            *(Route(path, self._answering(answer), methods=["POST"]) for path, answer in posts.items()),
            *(Route(path, _fixed(about)) for path in gets),
        ]

    def _answering(
        self, answer: Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]
    ) -> Callable[[Request], Awaitable[JSONResponse]]:
        async def respond(request: Request) -> JSONResponse:
            authorize(request, self.api_key)
            try:
                body: object = orjson.loads(await request.body())
            except ValueError as error:
                raise RefusalError(400, f"no JSON: {error}") from error
            if not isinstance(body, dict):
                raise RefusalError(400, "the request is no object")
            return JSONResponse(await answer(cast("dict[str, Any]", body)))

        return respond

    async def chat(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """SGLang's `/v1/chat/completions` for a request with `input_ids`."""
        asked = self._asked(body.get("input_ids"), body, body.get("max_tokens", 16))
        sampled = await self._sample(asked)
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
        return {"object": "chat.completion", "choices": [choice], "usage": _usage(sampled, asked)}

    async def _completions(self, body: Mapping[str, Any]) -> dict[str, Any]:
        self._check_model(body)
        asked = self._asked(body.get("prompt"), body, body.get("max_tokens", 16))
        sampled = await self._sample(asked)
        choice = self._vllm_choice(sampled, asked, body)
        choice["text"] = ""
        if body.get("logprobs") is not None:
            choice["logprobs"] = {
                "tokens": [f"token_id:{each}" for each in sampled.token_ids],
                "token_logprobs": sampled.logprobs,
            }
        if body.get("return_token_ids"):
            choice |= {"token_ids": sampled.token_ids, "prompt_token_ids": asked.prompt_ids}
        return {"object": "text_completion", "choices": [choice], "usage": _usage(sampled, asked)}

    async def _vllm_generate(self, body: Mapping[str, Any]) -> dict[str, Any]:
        self._check_model(body)
        params = _object(body.get("sampling_params"))
        asked = self._asked(body.get("token_ids"), params, params.get("max_tokens", 16))
        sampled = await self._sample(asked)
        choice = self._vllm_choice(sampled, asked, {"return_weight_versions": True})
        choice["token_ids"] = sampled.token_ids
        if params.get("logprobs") is not None:
            choice["logprobs"] = {
                "content": [
                    {"logprob": logprob, **self._named(token_id)}
                    for token_id, logprob in zip(sampled.token_ids, sampled.logprobs, strict=True)
                ]
            }
        return {"request_id": "generate", "choices": [choice], "usage": None}

    def _named(self, token_id: int) -> dict[str, Any]:
        return {"token": f"token_id:{token_id}"} if self.string_ids else {"token_id": token_id}

    async def _sglang_generate(self, body: Mapping[str, Any]) -> dict[str, Any]:
        params = _object(body.get("sampling_params"))
        asked = self._asked(body.get("input_ids"), params, params.get("max_new_tokens", 128))
        sampled = await self._sample(asked)
        meta = self._meta_info(sampled, asked)
        if not body.get("return_logprob"):
            del meta["output_token_logprobs"]
        return {"text": "", "output_ids": sampled.token_ids, "meta_info": meta}

    def _check_model(self, body: Mapping[str, Any]) -> None:
        if body.get("model") != self.model:
            raise RefusalError(404, f"The model `{body.get('model')}` does not exist.", "model_not_found")

    def _asked(self, ids: object, fields: Mapping[str, Any], max_tokens: object) -> IdsRequest:
        given = cast("list[Any]", ids) if isinstance(ids, list) else []
        if not given or not set(map(type, given)) <= {int}:
            raise RefusalError(400, "the prompt is no list of token ids")
        if not isinstance(max_tokens, int) or max_tokens < 1:
            raise RefusalError(400, f"max_tokens must be at least 1, got {max_tokens!r:.40}")
        if self.context_tokens is not None and len(given) + max_tokens > self.context_tokens:
            raise too_long(self.context_tokens, len(given))
        seed = fields.get("seed", fields.get("sampling_seed"))
        return IdsRequest(
            prompt_ids=tuple(given),
            max_tokens=max_tokens,
            seed=seed if isinstance(seed, int) else 0,
            stop_ids=frozenset(fields.get("stop_token_ids") or ()),
        )

    def _vllm_choice(self, sampled: SampledIds, asked: IdsRequest, body: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "index": 0,
            "finish_reason": sampled.finish_reason(asked.stop_ids),
            "stop_reason": _matched(sampled, asked),
            "logprobs": None,
            **self.weights.vllm(body, len(sampled.token_ids)),
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
            "weight_version": self.weights.version,
            "output_token_logprobs": [
                (logprob, token_id, None)
                for token_id, logprob in zip(sampled.token_ids, sampled.logprobs, strict=True)
            ],
        }

    async def _sample(self, asked: IdsRequest) -> SampledIds:
        try:
            return await self.sampler(asked)
        except ValueError as error:
            raise RefusalError(400, str(error)) from error


def _matched(sampled: SampledIds, asked: IdsRequest) -> int | None:
    return sampled.token_ids[-1] if sampled.finish_reason(asked.stop_ids) == "stop" else None


def _usage(sampled: SampledIds, asked: IdsRequest) -> dict[str, int]:
    prompt, completion = len(asked.prompt_ids), len(sampled.token_ids)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def _object(value: object) -> Mapping[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _fixed(answer: Mapping[str, Any]) -> Callable[[Request], Awaitable[JSONResponse]]:
    async def respond(_: Request) -> JSONResponse:
        return JSONResponse(dict(answer))

    return respond
