"""Faults of token ids and logprobs, on every wire that carries them."""

import json
import math

from tests.adversarial.fault_kinds import DEEP, LOST, OVERFLOW, READ, RETRIED, Kinds, lost, nested
from tests.adversarial.message_faults import POISON
from tests.adversarial.sampled_replies import STOP_ID, Sampled, call_text, ids_of_text

_ID = {
    "null": None, "a text": "5", "a float": 5.0, "a bool": True, "negative": -1, "2^31": 2**31,
    "of 5,000 digits": 10**4000, "a list": [5], "NaN": math.nan, "deep": DEEP,
}  # fmt: skip
"""One that is no id."""
_IDS = {"a text": "5,6", "a number": 5, "an object": {"0": 5}, "empty": [], "deep": DEEP}
"""What is no list of ids."""
_VALUES = {
    "NaN": math.nan, "-inf": -math.inf, "positive": 0.5, "the mark of what was not sampled": 1.0,
    "clamped": -9999.0, "beyond float32": -1e39, "a huge integer": -(10**400), "text": "-0.5", "null": None,
    "true": True, "deep": DEEP,
}  # fmt: skip
_NO_ECHO = (("sglang", "generate"),)


def chat_kinds():
    table = Kinds(wire="chat")
    for name, ids in _IDS.items():
        table.body(f"token_ids {name}", _in_choice(token_ids=ids), RETRIED if name == "empty" else lost(ids))
        given = lambda r, ids=ids: nested(r | {"prompt_token_ids": ids})  # noqa: E731
        table.body(f"prompt_token_ids {name}", given, lost(ids))
    for name, value in _ID.items():
        table.body(
            f"a token id {name}",
            _changed(lambda c, v=value: c["token_ids"].__setitem__(1, v)),
            LOST if value != DEEP else RETRIED,
        )
    for name, value in _VALUES.items():
        table.body(f"a logprob {name}", _logprob(value), LOST if value != DEEP else RETRIED)
    table.body("token_ids null", _in_choice(token_ids=None), READ, runs=1, exact=False, once_exact=LOST)
    table.body("token_ids one fewer", _changed(lambda c: c["token_ids"].pop()), LOST)
    table.body("token_ids 100,000 more", _changed(_more_ids), LOST, heavy=True)
    table.body("prompt_token_ids null", lambda r: r | {"prompt_token_ids": None}, LOST)
    another = [3] * 40
    table.body(
        "prompt ids of another prompt", lambda r: r | {"prompt_token_ids": another}, READ, runs=1, exact=True
    )
    too_long = [3] * 40_000
    table.body(
        "prompt ids longer than a row", lambda r: r | {"prompt_token_ids": too_long}, OVERFLOW, heavy=True
    )
    shapes = {
        "of null": [None] * 8,
        "of numbers": [-0.5] * 8,
        "of nothing": [{}] * 8,
        "empty": [],
        "deep": DEEP,
    }
    for name, content in shapes.items():
        table.body(f"logprobs {name}", _in_choice(logprobs={"content": content}), lost(content))
    table.body("logprobs a text", _in_choice(logprobs="x"), LOST)
    for name, logprobs in {"null": None, "null inside": {"content": None}}.items():
        table.body(f"logprobs {name}", _in_choice(logprobs=logprobs), READ, runs=1, exact=True)
    for name, value in {"0": 0, "rounded above 0": 1e-7}.items():
        table.body(f"a logprob {name}", _logprob(value), READ, runs=1, exact=True)
    table.body("one logprob fewer", _changed(lambda c: c["logprobs"]["content"].pop()), LOST)
    table.body(
        "one logprob more", _changed(lambda c: c["logprobs"]["content"].append({"logprob": -0.5})), LOST
    )
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


def _more_ids(choice):
    choice["token_ids"] += [5] * 100_000
    choice["logprobs"]["content"] += [{"logprob": -0.5}] * 100_000


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
    table.parts("sampled ids one more than logprobs", lambda s: s.ids.insert(0, 5), LOST)


def _prompts(table):
    table.parts("an echo of other ids", lambda s: s.echo.__setitem__(3, s.echo[3] + 1), LOST, but_on=_NO_ECHO)
    table.parts("an echo cut in front", lambda s: s.echo.pop(0), LOST, but_on=_NO_ECHO)
    table.parts("an echo that is longer", lambda s: s.echo.append(5), LOST, but_on=_NO_ECHO)
    for name, value in {"a text": "x", "empty": [], "deep": DEEP}.items():
        table.parts(f"an echo {name}", _set(echo=value), lost(value), but_on=_NO_ECHO)
    table.parts("no echo", _set(echo=None), READ, runs=1)
    for name, value in {"0": 0, "negative": -1, "a text": "x"}.items():
        table.parts(f"prompt tokens {name}", _set(prompt_tokens=value), LOST)
    table.parts("prompt tokens null", _set(prompt_tokens=None), READ, runs=1)


def _sampled_logprobs(table):
    for name, value in _VALUES.items():
        unread = value is math.nan or value == -math.inf
        table.parts(f"a sampled logprob {name}", _at("logprobs", value), RETRIED if unread else lost(value))
    for name, value in {"null": None, "empty": [], "a text": "x", "deep": DEEP, "a number": 7}.items():
        table.parts(f"sampled logprobs {name}", _set(logprobs=value), lost(value))
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
    table.parts('an end "abort"', _set(finish="abort"), RETRIED)
    for reason in ("content_filter", "whatever", 7, {"a": 1}):
        table.parts(f"an end {json.dumps(reason)}", _set(finish=reason), LOST)
    table.parts("an end deep", _set(finish=DEEP), RETRIED)
    table.parts("an end null", _set(finish=None), READ, runs=1)
    table.parts("an end length, at a stop token", _set(finish="length"), READ, runs=1)
    for name, value in {"null": None, "a text": "x", "other": 5}.items():
        table.parts(f"stopped by {name}", _set(matched=value), READ, runs=1)
    table.parts("stopped by an object", _set(matched={}), LOST)
    for name, value in {"a number": 7, "an object": {"a": 1}, "long": "v" * 100_000}.items():
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
        "an open call": call.removesuffix("</tool_call>"),
        "an open call, then a new one": f"<tool_call>{call[:20]}<tool_call>",
        "a broken call": call.replace("}", ""),
        "a call of nothing": "<tool_call></tool_call>",
        "a call of a list": f'<tool_call>["note", "{POISON}"]</tool_call>',
        "a call of two objects": call.replace("\n</tool_call>", "{}\n</tool_call>"),
        "a call of a name with a blank": call_text(POISON, "note "),
        "a call in a response": f"<tool_response>\n{call[11:-12]}\n</tool_response>",
        "a deep call": f"<tool_call>{'[' * 600}</tool_call>",
        "a call with NaN": call.replace(f'"{POISON}"', "NaN"),
        "a user's turn": f"x<|im_start|>user\n{call[11:-12]}",
    }
    for name, text in texts.items():
        table.parts(f"samples {name}", lambda s, text=text: _say(s, text), READ)
    table.parts("samples half a character", lambda s: _at_front(s, 200), READ, runs=1)


def _at_front(sampled, id):
    for values in (sampled.ids, sampled.named):
        values.insert(0, id)
    sampled.logprobs.insert(0, -0.5)
