"""Requests that model servers refuse, each with the answer that its server gives, word for word."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from starlette.responses import JSONResponse, PlainTextResponse, Response

from environments.policy.mock.quirky_server import Fields, calls_of

Refusal = Callable[[Fields], Response | None]


def where_asked(field: str, answer: Callable[[], Response]) -> Refusal:
    """Refuse requests that have a field."""
    return lambda asked: answer() if asked.get(field) else None


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


def no_logprobs() -> Response:
    """OpenAI, of a reasoning model."""
    return openai_error(403, "You are not allowed to request logprobs from this model", param=None)


def max_tokens() -> Response:
    """OpenAI, of a reasoning model."""
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


def no_auto_tools() -> Response:
    """Of vLLM without the flags."""
    return plain_error(
        '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
    )


def no_jinja() -> Response:
    """llama.cpp without the flag."""
    error = {"code": 500, "message": "tools param requires --jinja flag", "type": "server_error"}
    return JSONResponse({"error": error}, status_code=500)


def no_tools() -> Response:
    """Of a model of ollama whose template has none."""
    error = {"message": "registry.ollama.ai/library/mock does not support tools", "type": "api_error"}
    return JSONResponse({"error": {**error, "param": None, "code": None}}, status_code=400)


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
