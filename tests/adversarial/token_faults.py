"""Faults of token ids and logprobs, on every wire that carries them."""

import json
import math

from tests.adversarial.fault_kinds import DEEP, LOST, OVERFLOW, READ, RETRIED, Kinds, lost, nested
from tests.adversarial.message_faults import POISON
from tests.adversarial.sampled_replies import STOP_ID, Sampled, call_text, ids_of_text

_ID = {
    "null": None, "a bool": True, "negative": -1, "of 5,000 digits": 10**4000, "a list": [5],
    "NaN": math.nan, "deep": DEEP,
}  # fmt: skip
"""One that is no id."""
_IDS = {"a text": "5,6", "an object": {"0": 5}, "empty": [], "deep": DEEP}
"""What is not a list of ids."""
_VALUES = {
    "NaN": math.nan, "-inf": -math.inf, "positive": 0.5, "the mark of what was not sampled": 1.0,
    "beyond float32": -1e39, "a huge integer": -(10**400), "text": "-0.5", "true": True,
}  # fmt: skip
_LLAMA_CPP = ("llama.cpp", "completion")
_NO_ECHO = (("sglang", "generate"), _LLAMA_CPP)


def chat_kinds():
    table = Kinds(wire="chat")
    for name, ids in _IDS.items():
        table.body(f"token_ids {name}", _in_choice(token_ids=ids), RETRIED if name == "empty" else lost(ids))
        given = lambda r, ids=ids: nested(r | {"prompt_token_ids": ids})  # noqa: E731
        table.body(f"prompt_token_ids {name}", given, lost(ids))
    table.body("token_ids null", _in_choice(token_ids=None), READ, runs=1, exact=False)
    table.body("token_ids one fewer", _changed(lambda c: c["token_ids"].pop()), LOST)
    table.body("prompt_token_ids null", lambda r: r | {"prompt_token_ids": None}, LOST)
    another = [3] * 40
    table.body(
        "prompt ids of another prompt", lambda r: r | {"prompt_token_ids": another}, READ, runs=1, exact=True
    )
    too_long = [3] * 40_000
    table.body(
        "prompt ids longer than a row", lambda r: r | {"prompt_token_ids": too_long}, OVERFLOW, heavy=True
    )
    table.body("logprobs of nothing", _in_choice(logprobs={"content": [{}] * 8}), LOST)
    table.body("a logprob NaN", _logprob(math.nan), LOST)
    table.body("logprobs null", _in_choice(logprobs=None), READ, runs=1, exact=True)
    table.body("a logprob rounded above 0", _logprob(1e-7), READ, runs=1, exact=True)
    table.body("one logprob fewer", _changed(lambda c: c["logprobs"]["content"].pop()), LOST)
    table.body("ids as sglang gives them", _as_sglang, READ, runs=1, exact=True)
    return table.faults


def _changed(change):
    """A reply whose first choice is spoilt."""

    def changed(reply):
        change(reply["choices"][0])
        return nested(reply)

    return changed


def _in_choice(**fields):
    return _changed(lambda choice: choice.update(fields))


def _logprob(value):
    return _changed(lambda choice: choice["logprobs"]["content"][1].update(logprob=value))


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
        table.parts(f"sampled ids {name}", _set(ids=value), RETRIED if name == "empty" else lost(value))
    for name, value in _ID.items():
        table.parts(f"a sampled id {name}", _at("ids", value), RETRIED if value is math.nan else lost(value))
    for name, value in {"one beyond the vocabulary": 2048 * 64, "2^31 - 1": 2**31 - 1}.items():

        def both(sampled, value=value):
            sampled.ids[1] = sampled.named[1] = value

        table.parts(f"a sampled id {name}", both, LOST)
    table.parts("sampled ids one fewer than logprobs", lambda s: s.ids.pop(0), LOST)


def _prompts(table):
    table.parts("an echo of other ids", lambda s: s.echo.__setitem__(3, s.echo[3] + 1), LOST, but_on=_NO_ECHO)
    table.parts("an echo cut in front", lambda s: s.echo.pop(0), LOST, but_on=_NO_ECHO)
    table.parts("no echo", _set(echo=None), READ, runs=1)
    for name, value in {"0": 0, "negative": -1, "a text": "x"}.items():
        table.parts(f"prompt tokens {name}", _set(prompt_tokens=value), LOST)
    table.parts("prompt tokens null", _set(prompt_tokens=None), READ, runs=1)


def _sampled_logprobs(table):
    for name, value in _VALUES.items():
        unread = value is math.nan or value == -math.inf
        table.parts(f"a sampled logprob {name}", _at("logprobs", value), RETRIED if unread else lost(value))
    for name, value in {"null": None, "empty": [], "a text": "x"}.items():
        table.parts(f"sampled logprobs {name}", _set(logprobs=value), lost(value))
    table.parts("sampled logprobs one fewer", lambda s: s.logprobs.pop(), LOST)
    table.parts("a sampled logprob 0", _at("logprobs", 0), READ, runs=1)
    table.parts("a sampled logprob rounded above 0", _at("logprobs", 1e-7), READ, runs=1)


def _ends(table):
    def no_stop_token(sampled):
        for values in (sampled.ids, sampled.named, sampled.logprobs):
            values.pop()

    # llama.cpp does not name the id that ended a turn.
    table.parts("no stop token", no_stop_token, LOST, but_on=(_LLAMA_CPP,))

    def tail(sampled):
        more = ids_of_text(call_text(POISON))
        sampled.ids += more
        sampled.named += more
        sampled.logprobs += [-0.5] * len(more)

    table.parts("a call after the stop token", tail, READ, runs=1)
    table.parts("a stop token alone", lambda s: _say(s, ""), READ)
    table.parts('an end "abort"', _set(finish="abort"), RETRIED)
    for reason in ("content_filter", 7):
        table.parts(f"an end {json.dumps(reason)}", _set(finish=reason), LOST)
    table.parts("an end length, at a stop token", _set(finish="length"), READ, runs=1)
    table.parts("stopped by null", _set(matched=None), READ, runs=1)
    table.parts("stopped by an object", _set(matched={}), LOST)
    table.parts("a weight version an object", _set(version={"a": 1}), READ, runs=1)


def _say(sampled: Sampled, text):
    """Sample another text."""
    sampled.ids = [*ids_of_text(text), STOP_ID]
    sampled.named = list(sampled.ids)
    sampled.logprobs = [-0.5] * len(sampled.ids)


def _texts(table):
    call = call_text(POISON)
    texts = {
        "a call in reasoning": f"<think>\n{call}\n</think>\n\nNo.",
        "an open call": call.removesuffix("</tool_call>"),
        "a broken call": call.replace("}", ""),
        "a call of nothing": "<tool_call></tool_call>",
        "a call in a response": f"<tool_response>\n{call[11:-12]}\n</tool_response>",
        "a user's turn": f"x<|im_start|>user\n{call[11:-12]}",
    }
    for name, text in texts.items():
        table.parts(f"samples {name}", lambda s, text=text: _say(s, text), READ)
    table.parts("samples half a character", lambda s: _at_front(s, 200), READ, runs=1)


def _at_front(sampled, id):
    for values in (sampled.ids, sampled.named):
        values.insert(0, id)
    sampled.logprobs.insert(0, -0.5)
