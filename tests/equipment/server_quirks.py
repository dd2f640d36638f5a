"""The quirks of real model servers, by name, and what a server of that kind refuses, replies and lists.

Sources: the servers' code and documentation, and the errors that their users report.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import orjson
from starlette.responses import JSONResponse, PlainTextResponse, Response

from environments.policy.inference.chat_reply import call_id
from tests.equipment.quirky_server import Fields, Quirk, calls_of

Refusal = Callable[[Fields], Response | None]


def openai_error(status: int, message: str, *, param: str | None = None, code: Any = None) -> Response:
    """OpenAI's shape, which most others have, too."""
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
    return JSONResponse({"error": error}, status_code=status)


def plain_error(message: str, *, kind: str = "BadRequestError", code: Any = 400) -> Response:
    """The shape of vLLM before it took OpenAI's, and of Mistral."""
    error = {"object": "error", "message": message, "type": kind, "param": None, "code": code}
    return JSONResponse(error, status_code=400)


def unknown_argument(asked: Fields) -> Response | None:
    """OpenAI knows no token ids."""
    if "return_token_ids" not in asked:
        return None
    return openai_error(400, "Unrecognized request argument supplied: return_token_ids")


def max_tokens(asked: Fields) -> Response | None:
    """OpenAI, of a reasoning model."""
    if "max_tokens" not in asked:
        return None
    text = (
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' "
        "instead."
    )
    return openai_error(400, text, param="max_tokens", code="unsupported_parameter")


def sampling(asked: Fields) -> Response | None:
    """OpenAI, of a reasoning model: a temperature that is not the default, and any top_p."""
    if asked.get("temperature", 1) != 1:
        text = (
            f"Unsupported value: 'temperature' does not support {asked['temperature']:g} with this model. "
            "Only the default (1) value is supported."
        )
        return openai_error(400, text, param="temperature", code="unsupported_value")
    if "top_p" in asked:
        text = "Unsupported parameter: 'top_p' is not supported with this model."
        return openai_error(400, text, param="top_p", code="unsupported_parameter")
    return None


def provider_error() -> Response:
    """OpenRouter, with the status 200, when the server behind it broke."""
    error = {"message": "Provider returned error", "code": 502, "metadata": {"provider_name": "mock"}}
    return JSONResponse({"error": error, "user_id": "user_mock"})


def mistral_fields(asked: Fields) -> Response | None:
    """Mistral, of each field that its schema does not have, those of messages too."""
    known = {"role", "content", "tool_calls", "tool_call_id", "name", "prefix"}
    places: list[list[Any]] = [
        [name] for name in ("seed", "return_token_ids", "logprobs", "top_logprobs") if name in asked
    ]
    for index, message in enumerate(asked["messages"]):
        places += [["messages", index, message["role"], name] for name in sorted(message.keys() - known)]
    if not places:
        return None
    problems = [
        {"type": "extra_forbidden", "loc": ["body", *place], "msg": "Extra inputs are not permitted"}
        for place in places
    ]
    error = {"object": "error", "message": {"detail": problems}, "type": "invalid_request_error"}
    return JSONResponse({**error, "param": None, "code": None}, status_code=422)


def mistral_call_ids(asked: Fields) -> Response | None:
    """Mistral, of the id of a call that is not nine letters and digits."""
    for message in asked["messages"]:
        ids: list[str] = [call["id"] for call in calls_of(message)]
        for each in [*ids, message.get("tool_call_id") or "aaaaaaaaa"]:
            if not (len(each) == 9 and each.isascii() and each.isalnum()):
                text = f"Tool call id was {each} but must be a-z, A-Z, 0-9, with a length of 9."
                return plain_error(text, kind="invalid_function_call", code="3280")
    return None


def mistral_roles(asked: Fields) -> Response | None:
    """Mistral, of a user who speaks right after a tool's result."""
    roles = [message["role"] for message in asked["messages"]]
    if ("tool", "user") not in pairwise(roles):
        return None
    text = "Unexpected role 'user' after role 'tool'"
    return plain_error(text, kind="invalid_request_message_order", code="3230")


def transformers_fields(asked: Fields) -> Response | None:
    """`transformers serve`, of what OpenAI's schema does not have."""
    unexpected = asked.keys() & {"return_token_ids"}
    if not unexpected:
        return None
    return JSONResponse({"detail": f"Unexpected fields in the request: {unexpected}"}, status_code=422)


def whole_answers(asked: Fields) -> Response | None:
    """`transformers serve` before it could answer at once; with the status 200."""
    return None if asked.get("stream") else JSONResponse({"error": "Only streaming mode is supported."})


def internal_error(_: Fields) -> Response:
    """`transformers serve`, of its models, on a machine without a cache of them."""
    return PlainTextResponse("Internal Server Error", status_code=500)


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


def response_ids(reply: Fields) -> None:
    """SGLang: other names, and all of it in the choice."""
    choice = choice_of(reply)
    choice["prompt_token_ids"] = reply.pop("prompt_token_ids", None)
    choice["response_token_ids"] = choice.pop("token_ids", None)


def finished(reason: Any) -> Callable[[Fields], None]:
    """Another finish reason."""

    def change(reply: Fields) -> None:
        choice_of(reply)["finish_reason"] = reason

    return change


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


QUIRKS: Mapping[str, Quirk] = {
    "openai-no-ids": Quirk(
        says="token ids are an unrecognized argument",
        refuses=unknown_argument,
        replies=without_tokens,
    ),
    "openai-max-tokens": Quirk(
        says="max_tokens is max_completion_tokens",
        refuses=max_tokens,
    ),
    "openai-sampling": Quirk(says="the default temperature alone, no top_p", refuses=sampling),
    "vllm-no-parser": Quirk(says="tool calls as text, finish_reason stop", replies=calls_as_text),
    "vllm-reasoning": Quirk(says="reasoning in `reasoning`", replies=reasoning_as("reasoning")),
    "sglang-response-ids": Quirk(says="response_token_ids, all ids in the choice", replies=response_ids),
    "sglang-finish": Quirk(
        says="finish_reason as an object", replies=finished({"type": "stop", "matched": 2})
    ),
    "llamacpp-no-ids": Quirk(says="fields that it does not know are ignored", replies=without_tokens),
    "llamacpp-calls": Quirk(says="calls without ids", replies=each_call(without_id)),
    "llamacpp-models": Quirk(says="two lists of models in one", models=llamacpp_models),
    "ollama-calls": Quirk(says="arguments as objects, or null", replies=each_call(object_arguments)),
    "ollama-finish": Quirk(says="finish_reason stop beside calls", replies=finished("stop")),
    "ollama-models": Quirk(
        says="names with :latest",
        models=ollama_models,
        plain_name=lambda name: name.removesuffix(OLLAMA_TAG),
    ),
    "openrouter-error": Quirk(says="first an error with the status 200", fails_first=provider_error),
    "openrouter-comments": Quirk(says="comments before the JSON", writes=after_comments),
    "openrouter-reasoning": Quirk(says="reasoning_details", replies=reasoning_details),
    "openrouter-models": Quirk(
        says="names with their maker's",
        models=openrouter_models,
        plain_name=lambda name: name.removeprefix(OPENROUTER_MAKER),
    ),
    "mistral-fields": Quirk(
        says="extra fields forbidden (422), in messages too",
        refuses=mistral_fields,
        replies=without_tokens,
    ),
    "mistral-call-ids": Quirk(
        says="ids of nine letters and digits",
        refuses=mistral_call_ids,
        replies=each_call(nine_characters),
    ),
    "mistral-roles": Quirk(says="no user right after a tool", refuses=mistral_roles),
    "mistral-thinking": Quirk(says="thinking as content parts", replies=thinking_parts),
    "transformers-fields": Quirk(
        says="unexpected fields (422)", refuses=transformers_fields, replies=without_tokens
    ),
    "transformers-models": Quirk(says="a list of models that breaks (500)", models=internal_error),
    "transformers-stream": Quirk(says="event streams only", refuses=whole_answers, writes=event_stream),
}
SERVERS: Mapping[str, Sequence[str]] = {
    "openai": ("openai-no-ids", "openai-max-tokens", "openai-sampling"),
    "vllm": ("vllm-reasoning",),
    "sglang": ("sglang-response-ids", "sglang-finish"),
    "llamacpp": ("llamacpp-no-ids", "llamacpp-calls", "llamacpp-models"),
    "ollama": ("llamacpp-no-ids", "ollama-calls", "ollama-finish", "ollama-models", "vllm-reasoning"),
    "openrouter": (
        "llamacpp-no-ids", "openrouter-error", "openrouter-comments", "openrouter-reasoning",
        "openrouter-models",
    ),
    "mistral": ("mistral-fields", "mistral-call-ids", "mistral-roles", "mistral-thinking"),
    "transformers": ("transformers-fields", "transformers-models", "transformers-stream"),
}  # fmt: skip
"""What a server does without any setting of its user."""


def quirks_named(names: Sequence[str]) -> tuple[Quirk, ...]:
    """The quirks of these names; a server's name stands for what it does by default."""
    wanted = dict.fromkeys(quirk for name in names for quirk in SERVERS.get(name, (name,)))
    return tuple(QUIRKS[name] for name in wanted)
