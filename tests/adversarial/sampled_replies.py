"""What a sound server samples, and the answers in which each wire carries its token ids."""

import json
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from environments.policy.rendering.chatml import EMBEDDED_TOKENIZER_DIR, STOP

_TOKENIZER = Tokenizer.from_file(str(EMBEDDED_TOKENIZER_DIR / "tokenizer.json"))
STOP_ID = _TOKENIZER.token_to_id(STOP)


def ids_of_text(text):
    """Ids of what a model may sample: control tokens are what they say."""
    return _TOKENIZER.encode(text, add_special_tokens=False).ids


@dataclass(kw_only=True)
class Sampled:
    """The parts of an answer, each of which a fault may spoil. `named`: the ids that logprobs are of."""

    ids: Any
    logprobs: Any
    named: list[int]
    echo: Any
    prompt_tokens: Any
    finish: Any = "stop"
    matched: Any = STOP_ID
    version: Any = None


def sampled(text, prompt):
    ids = [*ids_of_text(text), STOP_ID]
    return Sampled(
        ids=ids, logprobs=[-0.5] * len(ids), named=list(ids), echo=list(prompt), prompt_tokens=len(prompt)
    )


def call_text(token, name="note"):
    call = {"name": name, "arguments": {"token": token}}
    return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


def completions(of):
    choice = {
        "index": 0,
        "text": "…",
        "finish_reason": of.finish,
        "stop_reason": of.matched,
        "token_ids": of.ids,
        "prompt_token_ids": of.echo,
        "logprobs": None if of.logprobs is None else {"token_logprobs": of.logprobs, "tokens": []},
        "weight_versions": None if of.version is None else [{"version": of.version}],
    }
    return {"id": "cmpl-1", "object": "text_completion", "choices": [choice], "usage": _usage(of)}


def generate(of):
    content = of.logprobs
    if isinstance(content, list):
        content = [{"token_id": id, "logprob": logprob} for id, logprob in _named(of)]
    choice = {
        "index": 0,
        "finish_reason": of.finish,
        "stop_reason": of.matched,
        "token_ids": of.ids,
        "logprobs": None if content is None else {"content": content},
        "weight_versions": None if of.version is None else [{"version": of.version}],
    }
    return {"request_id": "1", "choices": [choice], "prompt_token_ids": of.echo, "usage": _usage(of)}


def sglang(of):
    return {
        "text": "…",
        "output_ids": of.ids,
        "meta_info": _meta(of, {"type": of.finish, "matched": of.matched}),
    }


def sglang_chat(of):
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "…"},
        "finish_reason": of.finish,
        "matched_stop": of.matched,
        "response_token_ids": of.ids,
        "prompt_token_ids": of.echo,
        "meta_info": _meta(of, None),
    }
    return {"id": "1", "object": "chat.completion", "choices": [choice], "usage": _usage(of)}


def llama_cpp(of):
    entries = of.logprobs
    if isinstance(entries, list):
        entries = [{"id": id, "logprob": logprob} for id, logprob in _named(of)]
    return {
        "tokens": of.ids,
        "completion_probabilities": entries,
        "tokens_evaluated": of.prompt_tokens,
        "stop_type": {"stop": "eos", "length": "limit"}.get(of.finish, of.finish),
        "stopping_word": "" if of.matched == STOP_ID else of.matched,
    }


def _named(of):
    return zip(of.named, of.logprobs, strict=False)


def _usage(of):
    return {"prompt_tokens": of.prompt_tokens, "completion_tokens": len(of.named)}


def _meta(of, finish):
    pairs = of.logprobs
    if isinstance(pairs, list):
        pairs = [[logprob, id, None] for id, logprob in _named(of)]
    return {
        "prompt_tokens": of.prompt_tokens,
        "finish_reason": finish,
        "output_token_logprobs": pairs,
        "weight_version": of.version,
    }


ANSWERS = {
    ("vllm", "completions"): completions,
    ("vllm", "generate"): generate,
    ("sglang", "generate"): sglang,
    ("sglang", "chat"): sglang_chat,
    ("llama.cpp", "completion"): llama_cpp,
}
"""By server type and token wire."""
PATHS = {
    "/v1/completions": ("vllm", "completions"),
    "/inference/v1/generate": ("vllm", "generate"),
    "/generate": ("sglang", "generate"),
    "/completion": ("llama.cpp", "completion"),
}
