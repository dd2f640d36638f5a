"""What `extra_body` may add to the requests to a model server, and what of it shapes what is sampled."""

import json
from collections.abc import Mapping
from typing import Any

import orjson

_TOKENS_ARE_ASKED_FOR = "token ids and logprobs are asked for where a server has them"
_IDS_ARE_SENT = "ids are sent with --openai.server_type vllm or sglang"
SET_ELSEWHERE: Mapping[str, str] = {
    "messages": "format_prompt of the environment writes them",
    "model": "set --openai.model_name",
    "n": "set --env.group_size",
    "stream": "answers are read whole",
    "seed": "set --env.seed",
    "temperature": "set --env.temperature",
    "top_p": "set --env.top_p",
    "max_tokens": "set --env.max_tokens_per_turn",
    "max_completion_tokens": "set --env.max_tokens_per_turn",
    "max_new_tokens": "set --env.max_tokens_per_turn",
    "tools": "set `tools` of the environment, or --env.enabled_toolsets",
    "logprobs": _TOKENS_ARE_ASKED_FOR,
    "top_logprobs": _TOKENS_ARE_ASKED_FOR,
    "return_token_ids": _TOKENS_ARE_ASKED_FOR,
    "prompt": _IDS_ARE_SENT,
    "input_ids": _IDS_ARE_SENT,
    "token_ids": _IDS_ARE_SENT,
    "prompt_token_ids": _IDS_ARE_SENT,
}
"""Fields of requests that are ours, and what decides them."""
_SHAPES_NOTHING = frozenset({
    "cache_salt", "data_parallel_rank", "extra_key", "kv_transfer_params", "metadata", "priority",
    "prompt_cache_key", "request_id", "return_weight_versions", "rid", "routed_dp_rank", "safety_identifier",
    "service_tier", "store", "stream_options", "user",
})  # fmt: skip
"""Fields that say nothing of what is sampled."""


def checked_extra_body(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields, when requests can have them.

    Raises:
        ValueError: one of them is set elsewhere, is no name, or its value no JSON.
    """
    for name, value in fields.items():
        if name in SET_ELSEWHERE:
            raise ValueError(f"cannot set {name}: {SET_ELSEWHERE[name]}")
        if "." in name or not name:
            outer, _, inner = name.partition(".")
            raise ValueError(
                f"has no entry {name}: a value within another is JSON, "
                f"--openai.extra_body.{outer} '{{\"{inner}\": …}}'"
            )
        try:
            orjson.dumps(value)
            json.dumps(value, allow_nan=False)  # orjson writes a NaN as null
        except (TypeError, ValueError) as error:
            raise ValueError(f"cannot send {name}: {error}") from error
    return fields


def sampling_of(temperature: float, top_p: float, extra_body: Mapping[str, Any]) -> dict[str, Any]:
    """How a server is asked to sample: the settings, and what `extra_body` adds that may shape it."""
    return {"temperature": temperature, "top_p": top_p, **shaping(extra_body)}


def shaping(extra_body: Mapping[str, Any]) -> dict[str, Any]:
    """What may shape the distribution that a server samples from."""
    return {name: value for name, value in extra_body.items() if name not in _SHAPES_NOTHING}
