"""Faults of token ids and logprobs, on every wire that carries them."""

import math

from tests.adversarial.fault_kinds import DEEP, LOST, OVERFLOW, READ, Kinds, nested

_ID = {
    "null": None, "a text": "5", "a float": 5.0, "a half": 5.5, "a bool": True, "negative": -1, "the mask": -100,
    "2^31": 2**31, "2^64": 2**64, "of 5,000 digits": 10**4000, "a list": [5], "an object": {"id": 5}, "NaN": math.nan,
    "deep": DEEP,
}  # fmt: skip
"""One that is no id."""
_IDS = {"a text": "5,6", "a number": 5, "an object": {"0": 5}, "empty": [], "true": True, "deep": DEEP}
"""What is no list of ids."""
_VALUES = {
    "NaN": math.nan, "inf": math.inf, "-inf": -math.inf, "positive": 0.5, "the mark of what was not sampled": 1.0,
    "clamped": -9999.0, "beyond float32": -1e39, "a huge integer": -(10**400), "text": "-0.5", "null": None,
    "true": True, "a list": [-0.5], "an object": {"logprob": -0.5}, "deep": DEEP,
}  # fmt: skip


def chat_kinds():
    table = Kinds(wire="chat")
    for name, ids in _IDS.items():
        table.body(f"token_ids {name}", _then_nested(_choice(token_ids=ids)), LOST)
        table.body(f"prompt_token_ids {name}", _then_nested(_reply(prompt_token_ids=ids)), LOST)
    for name, value in _ID.items():
        table.body(f"a token id {name}", _then_nested(_id(value)), LOST)
        table.body(f"a prompt token id {name}", _then_nested(_prompt_id(value)), LOST)
    table.body("token_ids null", _choice(token_ids=None), READ, runs=1, exact=False)
    table.body("token_ids one fewer", _fewer_ids, LOST)
    table.body("token_ids 100,000 more", _more_ids, LOST, heavy=True)
    table.body("prompt_token_ids null", _reply(prompt_token_ids=None), LOST)
    table.body("prompt_token_ids missing", _no_prompt, LOST)
    table.body("prompt_token_ids of another prompt", _reply(prompt_token_ids=[3] * 40), READ, runs=1, exact=True)
    table.body("prompt_token_ids shorter", _shorter_prompt, READ, runs=1, exact=True)
    table.body("prompt_token_ids longer than a row", _reply(prompt_token_ids=[3] * 40_000), OVERFLOW, heavy=True)
    for name, value in _VALUES.items():
        table.body(f"a logprob {name}", _then_nested(_logprob(value)), LOST)
    shapes = {"a list": [-0.5], "a text": "x", "a number": 1, "of null": {"content": [None] * 8},
              "of numbers": {"content": [-0.5] * 8}, "of nothing": {"content": [{}] * 8}, "empty": {"content": []},
              "an object inside": {"content": {"0": -0.5}}, "deep": {"content": DEEP}}  # fmt: skip
    for name, logprobs in shapes.items():
        table.body(f"logprobs {name}", _then_nested(_choice(logprobs=logprobs)), LOST)
    table.body("logprobs null", _choice(logprobs=None), READ, runs=1, exact=True)
    table.body("logprobs null inside", _choice(logprobs={"content": None}), READ, runs=1, exact=True)
    table.body("logprobs of refusals", _choice(logprobs={"content": None, "refusal": []}), READ, runs=1, exact=True)
    table.body("a logprob 0", _logprob(0), READ, runs=1, exact=True)
    table.body("a logprob -0.0", _logprob(-0.0), READ, runs=1, exact=True)
    table.body("a logprob rounded above 0", _logprob(1e-7), READ, runs=1, exact=True)
    table.body("a logprob -1e30", _logprob(-1e30), LOST)
    table.body("one logprob fewer", _fewer_logprobs, LOST)
    table.body("one logprob more", _more_logprobs, LOST)
    table.body("ids as sglang gives them", _as_sglang, READ, runs=1, exact=True)
    return table.faults


def _reply(**fields):
    return lambda reply: reply | fields


def _choice(**fields):
    def change(reply):
        reply["choices"][0] |= fields
        return reply

    return change


def _then_nested(change):
    return lambda reply: nested(change(reply))


def _id(value):
    def change(reply):
        reply["choices"][0]["token_ids"][1] = value
        return reply

    return change


def _prompt_id(value):
    def change(reply):
        reply["prompt_token_ids"][1] = value
        return reply

    return change


def _fewer_ids(reply):
    reply["choices"][0]["token_ids"].pop()
    return reply


def _more_ids(reply):
    choice = reply["choices"][0]
    choice["token_ids"] += [5] * 100_000
    choice["logprobs"]["content"] += [{"logprob": -0.5}] * 100_000
    return reply


def _no_prompt(reply):
    del reply["prompt_token_ids"]
    return reply


def _shorter_prompt(reply):
    return reply | {"prompt_token_ids": reply["prompt_token_ids"][:-4]}


def _logprob(value):
    def change(reply):
        reply["choices"][0]["logprobs"]["content"][1]["logprob"] = value
        return reply

    return change


def _fewer_logprobs(reply):
    reply["choices"][0]["logprobs"]["content"].pop()
    return reply


def _more_logprobs(reply):
    reply["choices"][0]["logprobs"]["content"].append({"logprob": -0.5})
    return reply


def _as_sglang(reply):
    choice = reply["choices"][0]
    choice["prompt_token_ids"] = reply.pop("prompt_token_ids")
    choice["response_token_ids"] = choice.pop("token_ids")
    return reply
