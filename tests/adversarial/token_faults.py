"""Faults of token ids and logprobs, on every wire that carries them."""

import json
import math

from tests.adversarial.fault_kinds import DEEP, LOST, OVERFLOW, READ, Kinds, nested
from tests.adversarial.message_faults import POISON
from tests.adversarial.sampled_replies import STOP_ID, Sampled, call_text, ids_of_text

_ID = {
    "null": None, "a text": "5", "a float": 5.0, "a half": 5.5, "a bool": True, "negative": -1,
    "the mask": -100,
    "2^31": 2**31, "2^64": 2**64, "of 5,000 digits": 10**4000, "a list": [5], "an object": {"id": 5},
    "NaN": math.nan,
    "deep": DEEP,
}  # fmt: skip
"""One that is no id."""
_IDS = {"a text": "5,6", "a number": 5, "an object": {"0": 5}, "empty": [], "true": True, "deep": DEEP}
"""What is no list of ids."""
_VALUES = {
    "NaN": math.nan, "inf": math.inf, "-inf": -math.inf, "positive": 0.5,
    "the mark of what was not sampled": 1.0,
    "clamped": -9999.0, "beyond float32": -1e39, "a huge integer": -(10**400), "text": "-0.5", "null": None,
    "true": True, "a list": [-0.5], "an object": {"logprob": -0.5}, "deep": DEEP,
}  # fmt: skip
_NO_ECHO = (("sglang", "generate"),)


def chat_kinds():
    table = Kinds(wire="chat")
    for name, ids in _IDS.items():
        table.body(f"token_ids {name}", _then_nested(_choice(token_ids=ids)), LOST)
        table.body(f"prompt_token_ids {name}", _then_nested(_reply(prompt_token_ids=ids)), LOST)
    for name, value in _ID.items():
        table.body(f"a token id {name}", _then_nested(_id(value)), LOST)
        table.body(f"a prompt token id {name}", _then_nested(_prompt_id(value)), LOST)
    table.body("token_ids null", _choice(token_ids=None), READ, runs=1, exact=False, once_exact=LOST)
    table.body("token_ids one fewer", _fewer_ids, LOST)
    table.body("token_ids 100,000 more", _more_ids, LOST, heavy=True)
    table.body("prompt_token_ids null", _reply(prompt_token_ids=None), LOST)
    table.body("prompt_token_ids missing", _no_prompt, LOST)
    table.body(
        "prompt_token_ids of another prompt", _reply(prompt_token_ids=[3] * 40), READ, runs=1, exact=True
    )
    table.body("prompt_token_ids shorter", _shorter_prompt, READ, runs=1, exact=True)
    table.body(
        "prompt_token_ids longer than a row", _reply(prompt_token_ids=[3] * 40_000), OVERFLOW, heavy=True
    )
    for name, value in _VALUES.items():
        table.body(f"a logprob {name}", _then_nested(_logprob(value)), LOST)
    for name, logprobs in {"a list": [-0.5], "a text": "x", "a number": 1}.items():
        table.body(f"logprobs {name}", _choice(logprobs=logprobs), READ, runs=1, exact=True)
    shapes = {"of null": {"content": [None] * 8},
              "of numbers": {"content": [-0.5] * 8}, "of nothing": {"content": [{}] * 8},
              "empty": {"content": []},
              "an object inside": {"content": {"0": -0.5}}, "deep": {"content": DEEP}}  # fmt: skip
    for name, logprobs in shapes.items():
        table.body(f"logprobs {name}", _then_nested(_choice(logprobs=logprobs)), LOST)
    table.body("logprobs null", _choice(logprobs=None), READ, runs=1, exact=True)
    table.body("logprobs null inside", _choice(logprobs={"content": None}), READ, runs=1, exact=True)
    table.body(
        "logprobs of refusals", _choice(logprobs={"content": None, "refusal": []}), READ, runs=1, exact=True
    )
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


def token_kinds():
    """Faults of answers to requests that are token ids."""
    table = Kinds(wire="tokens")
    _sampled_ids(table)
    _prompts(table)
    _sampled_logprobs(table)
    _ends(table)
    _texts(table)
    return table.faults


def _set(**fields):
    def change(sampled):
        for name, value in fields.items():
            setattr(sampled, name, value)

    return change


def _at(name, value, index=1):
    def change(sampled):
        getattr(sampled, name)[index] = value

    return change


def _sampled_ids(table):
    for name, value in {**_IDS, "null": None, "longer than was asked for": [5] * 3000}.items():
        table.parts(f"sampled ids {name}", _set(ids=value), LOST)
    for name, value in _ID.items():
        table.parts(f"a sampled id {name}", _at("ids", value), LOST)
    for name, value in {"one beyond the vocabulary": 2048 * 64, "2^31 - 1": 2**31 - 1}.items():

        def both(sampled, value=value):
            sampled.ids[1] = sampled.named[1] = value

        table.parts(f"a sampled id {name}", both, LOST)
    table.parts("sampled ids one fewer than logprobs", lambda s: s.ids.pop(0), LOST)
    table.parts("sampled ids one more than logprobs", lambda s: s.ids.insert(0, 5), LOST)


def _prompts(table):
    table.parts("an echo of other ids", lambda s: s.echo.__setitem__(3, s.echo[3] + 1), LOST, but_on=_NO_ECHO)
    table.parts("an echo cut in front", lambda s: s.echo.pop(0), LOST, but_on=_NO_ECHO)
    table.parts("an echo that is longer", lambda s: s.echo.append(5), LOST, but_on=_NO_ECHO)
    for name, value in {"a text": "x", "an object": {"0": 1}, "empty": [], "deep": DEEP}.items():
        table.parts(f"an echo {name}", _set(echo=value), LOST, but_on=_NO_ECHO)
    table.parts("no echo", _set(echo=None), READ, runs=1)
    for name, value in {"0": 0, "one more": 10**6, "negative": -1}.items():
        table.parts(f"prompt tokens {name}", _set(prompt_tokens=value), LOST)
    for name, value in {"null": None, "a text": "x", "deep": DEEP}.items():
        table.parts(f"prompt tokens {name}", _set(prompt_tokens=value), READ, runs=1)


def _sampled_logprobs(table):
    for name, value in _VALUES.items():
        table.parts(f"a sampled logprob {name}", _at("logprobs", value), LOST)
    for name, value in {"null": None, "empty": [], "a text": "x", "deep": DEEP, "a number": 7}.items():
        table.parts(f"sampled logprobs {name}", _set(logprobs=value), LOST)
    table.parts("sampled logprobs one fewer", lambda s: s.logprobs.pop(), LOST)
    table.parts("a sampled logprob 0", _at("logprobs", 0), READ, runs=1)
    table.parts("a sampled logprob rounded above 0", _at("logprobs", 1e-7), READ, runs=1)


def _ends(table):
    def no_stop_token(sampled):
        for values in (sampled.ids, sampled.named, sampled.logprobs):
            values.pop()

    table.parts("no stop token", no_stop_token, LOST)

    def tail(sampled):
        more = ids_of_text(call_text(POISON))
        sampled.ids += more
        sampled.named += more
        sampled.logprobs += [-0.5] * len(more)

    table.parts("a call after the stop token", tail, READ, runs=1)
    table.parts("a stop token alone", lambda s: _say(s, ""), READ)
    for reason in ("abort", "error", "content_filter", "whatever", 7, [], {"a": 1}, True):
        table.parts(f"an end {json.dumps(reason)}", _set(finish=reason), LOST)
    table.parts("an end deep", _set(finish=DEEP), LOST)
    table.parts("an end null", _set(finish=None), READ, runs=1)
    table.parts("an end length, at a stop token", _set(finish="length"), READ, runs=1)
    for name, value in {
        "null": None,
        "a text": "x",
        "true": True,
        "an object": {},
        "deep": DEEP,
        "other": 5,
    }.items():
        table.parts(f"stopped by {name}", _set(matched=value), READ, runs=1)
    for name, value in {
        "a number": 7,
        "a list": ["a"],
        "an object": {"a": 1},
        "a lone surrogate": "v\ufffd",
        "long": "v" * 100_000,
    }.items():
        table.parts(f"a weight version {name}", _set(version=value), READ, runs=1)


def _say(sampled: Sampled, text):
    """Sample another text."""
    sampled.ids = [*ids_of_text(text), STOP_ID]
    sampled.named = list(sampled.ids)
    sampled.logprobs = [-0.5] * len(sampled.ids)


def _texts(table):
    call = call_text(POISON)
    texts = {
        "a call in reasoning": f"<think>\n{call}\n</think>\n\nNo.",
        "a call in open reasoning": f"<think>\n{call}",
        "an open call": call.removesuffix("</tool_call>"),
        "an open call, then a new one": f"<tool_call>{call[:20]}<tool_call>",
        "a call closed twice": "</tool_call></tool_call>", "a broken call": call.replace("}", ""),
        "a call without a name": "<tool_call>{\"arguments\": {\"token\": \"poison\"}}</tool_call>",
        "a call of nothing": "<tool_call></tool_call>",
        "a call of a list": f'<tool_call>["note", "{POISON}"]</tool_call>',
        "a call of two objects": call.replace("\n</tool_call>", "{}\n</tool_call>"),
        "a call of another tool": call_text(POISON, "notes"),
        "a call of a name with a blank": call_text(POISON, "note "),
        "a call in a response": f"<tool_response>\n{call[11:-12]}\n</tool_response>",
        "a call in single quotes": call.replace('"', "'"),
        "a deep call": f"<tool_call>{'[' * 600}</tool_call>",
        "a call with NaN": call.replace(f'"{POISON}"', "NaN"), "markers alone": "<|im_start|><|endoftext|>",
        "a user's turn": f"x<|im_start|>user\n{call[11:-12]}",
    }  # fmt: skip
    for name, text in texts.items():
        table.parts(f"samples {name}", lambda s, text=text: _say(s, text), READ)
    table.parts("samples half a character", lambda s: _at_front(s, 200), READ, runs=1)


def _at_front(sampled, id):
    for values in (sampled.ids, sampled.named):
        values.insert(0, id)
    sampled.logprobs.insert(0, -0.5)
