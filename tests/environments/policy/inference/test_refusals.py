"""What an error refuses: the field that it points to, or one that it says is unknown or unsupported."""

import json

from environments.policy.inference.dialect import refused_fields
from environments.policy.inference.http_client import StatusError, error_fields, error_message
from tests.tables import cases

FIELDS = (
    "temperature", "top_p", "seed", "n", "max_tokens", "logprobs", "top_logprobs", "return_token_ids",
    "tools", "tool_choice", "stream", "messages.reasoning_content",
)  # fmt: skip


def error(body, status=400):
    text = body if isinstance(body, str) else json.dumps(body)
    message = error_message(error_fields(text)) if not isinstance(body, str) else None
    return StatusError(status, message or text[:300], code=None, details=text, retry_after_s=None)


def refused(body, status=400):
    return sorted(refused_fields(error(body, status), FIELDS))


def said(message, param=None):
    return {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": None}}


def extra(*places):
    return {
        "detail": [{"type": "extra_forbidden", "loc": ["body", *p], "msg": "Extra inputs"} for p in places]
    }


SAID = [
    (
        said("Unsupported value: 'temperature' does not support 0.7. Only the default (1)", "temperature"),
        ["temperature"],
    ),
    (said("Unsupported value: 'temperature' does not support 0.7. Only the default (1)"), ["temperature"]),
    (said("Unsupported parameter: 'max_tokens' is not supported with this model."), ["max_tokens"]),
    (said("Unrecognized request argument supplied: return_token_ids"), ["return_token_ids"]),
    (said("Unrecognized request arguments supplied: seed, top_logprobs"), ["seed", "top_logprobs"]),
    (said("Unknown parameter: 'seed'."), ["seed"]),
    (said('json: unknown field "return_token_ids"'), ["return_token_ids"]),
    (said("You are not allowed to request logprobs from this model"), ["logprobs"]),
    (said("Logprobs is not enabled for models/gemini-2.5-pro"), ["logprobs"]),
    (said("logprobs is not supported with tools + stream"), ["logprobs"]),
    (said("property 'reasoning_content' is unsupported"), ["messages.reasoning_content"]),
    (said("`temperature` and `top_p` cannot both be specified for this model."), ["temperature", "top_p"]),
    (said("registry.ollama.ai/library/gemma:2b does not support tools"), ["tools"]),
    (said("tools param requires --jinja flag"), ["tools"]),
    (said("Unsupported param: tools"), ["tools"]),
    (
        {"detail": "Unexpected fields in the request: {'return_token_ids', 'seed'}"},
        ["return_token_ids", "seed"],
    ),
    (
        extra(["seed"], ["messages", 6, "assistant", "reasoning_content"]),
        ["messages.reasoning_content", "seed"],
    ),
    ({"object": "error", "message": extra(["return_token_ids"])}, ["return_token_ids"]),
    ({"object": "error", "message": json.dumps(extra(["return_token_ids"]))}, ["return_token_ids"]),
    (
        {"error": {"message": "Provider returned error", "metadata": {"raw": json.dumps(said("x", "seed"))}}},
        ["seed"],
    ),
]


@cases(("body", "fields"), SAID, ids=range(len(SAID)))
def test_a_field_that_an_error_refuses_is_found(body, fields):
    assert refused(body) == fields


ODD = [
    said("bad message near return_token_ids"),
    said("Out of range float values are not JSON compliant: nan in logprobs"),
    said("invalid logprobs: nan"),
    said("logprobs of token 5 is NaN"),
    said("Invalid message: 'please note that logprobs is not supported here'"),
    said('Invalid message: "Unsupported parameter: logprobs" cannot be decoded'),
    said("Unsupported parameter: 'logprobs'", "messages.[3].content"),
    said("Could not decode the message 'I set logprobs and seed'"),
    said("The model produced no text; seed was 5"),
    said("prompt contains an unsupported token near logprobs"),
    {"detail": [{"loc": ["body", "messages", 2, "content"], "msg": "logprobs is not supported"}]},
    "logprobs",
    "<html>seed</html>",
    "",
]


@cases("body", ODD, ids=range(len(ODD)))
def test_an_error_that_mentions_a_field_refuses_none(body):
    assert refused(body) == []


@cases("status", [401, 404, 429, 502, 503])
def test_an_error_of_another_kind_is_no_refusal_of_a_field(status):
    fields = refused(said("Unsupported parameter: 'seed'", "seed"), status)
    assert fields == (["seed"] if status == 404 else [])
