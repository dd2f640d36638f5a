"""Replies in the shapes of other model servers, made of the mock server's, which has vLLM's."""

import json
from collections.abc import Callable
from typing import Any

import orjson
from starlette.responses import JSONResponse, Response

from environments.inference.chat_reply import call_id
from environments.policy.mock.quirky_server import Fields, calls_of

OLLAMA_TAG = ":latest"
OPENROUTER_MAKER = "mock/"
_PIECE = 7
"""Characters of a streamed piece of text."""


def choice_of(reply: Fields) -> Fields:
    """The one choice."""
    return reply["choices"][0]


def without_tokens(reply: Fields) -> None:
    """Text alone."""
    reply.pop("prompt_token_ids", None)
    choice_of(reply).pop("token_ids", None)


def null_tokens(reply: Fields) -> None:
    """Of vLLM for gpt-oss: the fields are there, and empty."""
    reply["prompt_token_ids"] = choice_of(reply)["token_ids"] = None


def response_ids(reply: Fields) -> None:
    """SGLang: other names, and all of it in the choice."""
    choice = choice_of(reply)
    choice["prompt_token_ids"] = reply.pop("prompt_token_ids", None)
    choice["response_token_ids"] = choice.pop("token_ids", None)


def meta_info(reply: Fields) -> None:
    """SGLang's older shape: triples of logprob, id and text."""
    choice = choice_of(reply)
    logprobs: Fields = choice.pop("logprobs") or {}
    content: list[Fields] = logprobs.get("content", [])
    ids: list[int] = choice.pop("token_ids", [])
    triples = [[entry["logprob"], each, None] for entry, each in zip(content, ids, strict=True)]
    choice["meta_info"] = {"output_token_logprobs": triples, "weight_version": "7"}
    choice["prompt_token_ids"] = reply.pop("prompt_token_ids", None)
    choice["logprobs"] = None


def clamped(reply: Fields) -> None:
    """Of vLLM, for a token whose logprob it lost."""
    choice_of(reply)["logprobs"]["content"][-1]["logprob"] = -9999.0


def finished(reason: Any) -> Callable[[Fields], None]:
    """Another finish reason."""

    def change(reply: Fields) -> None:
        choice_of(reply)["finish_reason"] = reason

    return change


def with_fields_left_out(reply: Fields) -> None:
    """No finish reason, no role, no type of a call."""
    choice = choice_of(reply)
    del choice["finish_reason"], choice["message"]["role"]
    for call in calls_of(choice["message"]):
        del call["type"]


def filtered(reply: Fields) -> None:
    """Azure OpenAI, of an answer that its filter held back."""
    choice = choice_of(reply)
    choice["message"] = {"role": "assistant", "content": "I"}
    choice["finish_reason"] = "content_filter"


def refusal(reply: Fields) -> None:
    """OpenAI, where the model declines: in a field of its own."""
    message = choice_of(reply)["message"]
    message |= {"content": None, "refusal": message["content"] or None}


def legacy_call(reply: Fields) -> None:
    """OpenAI before there were several calls."""
    choice = choice_of(reply)
    calls = choice["message"].pop("tool_calls", None)
    if calls:
        choice["message"] |= {"content": None, "function_call": calls[0]["function"]}
        choice["finish_reason"] = "function_call"


def calls_as_text(reply: Fields) -> None:
    """Of vLLM without a parser of calls: they stay in the text, as Hermes and Qwen write them."""
    choice = choice_of(reply)
    texts = [choice["message"]["content"] or ""]
    for call in calls_of(choice["message"]):
        function = call["function"]
        text = f'{{"name": "{function["name"]}", "arguments": {function["arguments"]}}}'
        texts.append(f"<tool_call>\n{text}\n</tool_call>")
    choice["message"] |= {"content": "\n".join(filter(None, texts)), "tool_calls": []}
    choice["finish_reason"] = "stop"


def each_call(change: Callable[[Fields], None]) -> Callable[[Fields], None]:
    """Change the calls of a reply, one by one."""

    def change_all(reply: Fields) -> None:
        for call in calls_of(choice_of(reply)["message"]):
            change(call)

    return change_all


def nine_characters(call: Fields) -> None:
    """Mistral's ids."""
    call["id"] = call_id(call["id"])


def without_id(call: Fields) -> None:
    """Of llama.cpp, for formats that have none."""
    call["id"] = ""


def object_arguments(call: Fields) -> None:
    """As servers after ollama's own API give them; none at all where they are no object."""
    try:
        arguments: Any = json.loads(call["function"]["arguments"])
    except ValueError:
        return
    call["function"]["arguments"] = arguments or None


def reasoning_as(field: str) -> Callable[[Fields], None]:
    """Reasoning in another field, null where there is none."""

    def change(reply: Fields) -> None:
        message = choice_of(reply)["message"]
        message[field] = message.pop("reasoning_content", None)

    return change


def reasoning_details(reply: Fields) -> None:
    """OpenRouter: reasoning as objects, beside what the server behind it said."""
    choice = choice_of(reply)
    text = choice["message"].pop("reasoning_content", None)
    details = [{"type": "reasoning.text", "text": text, "format": "unknown", "index": 0}] if text else []
    choice["message"] |= {"refusal": None, "reasoning": None, "reasoning_details": details}
    choice["native_finish_reason"] = "completed"


def thinking_parts(reply: Fields) -> None:
    """Mistral's Magistral: content parts, the first of them its thoughts."""
    message = choice_of(reply)["message"]
    text = message.pop("reasoning_content", None)
    thoughts = [{"type": "thinking", "thinking": [{"type": "text", "text": text}]}] if text else []
    message["content"] = [*thoughts, {"type": "text", "text": message["content"] or ""}]


def after_comments(reply: Fields) -> bytes:
    """OpenRouter, which keeps the connection busy while it waits."""
    return b": OPENROUTER PROCESSING\n\n" * 3 + b"\n \n" + orjson.dumps(reply)


def event_stream(reply: Fields) -> bytes:
    """The reply in chunks, as vLLM streams it with token ids."""
    choice = choice_of(reply)
    message = choice["message"]
    deltas: list[Fields] = [{"role": "assistant", "content": ""}]
    for name in ("reasoning_content", "reasoning", "content"):
        text = message.get(name) or ""
        deltas += [{name: text[start : start + _PIECE]} for start in range(0, len(text), _PIECE)]
    for index, call in enumerate(calls_of(message)):
        function = call["function"]
        deltas.append({"tool_calls": [{**call, "index": index, "function": {**function, "arguments": ""}}]})
        text = function["arguments"]
        deltas += [
            {"tool_calls": [{"index": index, "function": {"arguments": text[start : start + _PIECE]}}]}
            for start in range(0, len(text), _PIECE)
        ]
    whole = {name: choice[name] for name in ("token_ids", "logprobs") if choice.get(name)}
    parts: list[Fields] = [{"delta": delta, "finish_reason": None} for delta in deltas]
    parts[-1] |= whole
    parts.append({"delta": {}, "finish_reason": choice["finish_reason"]})
    chunks: list[Fields] = [{"choices": [{"index": 0, **part}]} for part in parts]
    if "prompt_token_ids" in reply:
        chunks[0]["prompt_token_ids"] = reply["prompt_token_ids"]
    chunks.append({"choices": [], "usage": reply["usage"]})
    return b"".join(b"data: %b\n\n" % orjson.dumps(chunk) for chunk in chunks) + b"data: [DONE]\n\n"


def llamacpp_models(models: Fields) -> Response:
    """Of llama.cpp: ollama's list beside OpenAI's."""
    name = models["data"][0]["id"]
    entry = {"id": name, "object": "model", "owned_by": "llamacpp", "meta": {"n_ctx_train": 32768}}
    return JSONResponse({"models": [{"name": name, "model": name}], "object": "list", "data": [entry]})


def ollama_models(models: Fields) -> Response:
    """Of ollama: every name has a tag."""
    entries = [{**entry, "id": entry["id"] + OLLAMA_TAG, "owned_by": "library"} for entry in models["data"]]
    return JSONResponse({"object": "list", "data": entries})


def openrouter_models(models: Fields) -> Response:
    """OpenRouter: the maker's name before the model's."""
    entries = [
        {**entry, "id": OPENROUTER_MAKER + entry["id"], "canonical_slug": "x"} for entry in models["data"]
    ]
    return JSONResponse({"data": entries})


def no_models(_: Fields) -> Response:
    """Of ollama before it has one."""
    return JSONResponse({"object": "list", "data": None})
