"""Faults of the message in a chat reply: roles, contents, reasoning, tool calls and finish reasons."""

import json

from tests.adversarial.fault_kinds import DEEP, LOST, READ, Kinds, nested
from tests.adversarial.hostile_server import answer

POISON = "poison"
"""Begins what the tool must never be given."""


def kinds():
    table = Kinds(wire="chat")
    _messages(table)
    _roles(table)
    _contents(table)
    _reasoning(table)
    _finish_reasons(table)
    _anything(table)
    return table.faults


def message_of(reply):
    return reply["choices"][0]["message"]


def changed(**fields):
    def change(reply):
        message_of(reply).update(fields)
        return reply

    return change


def _without(name):
    def change(reply):
        del message_of(reply)[name]
        return reply

    return change


def said(**fields):
    """A message without tool calls."""
    return changed(tool_calls=None, **fields)


def _messages(table):
    for name, value in {"null": None, "a text": "x", "a list": [], "a number": 7, "empty": {}}.items():

        def change(reply, value=value):
            reply["choices"][0]["message"] = value
            return reply

        table.body(f"message {name}", change, LOST)

    def two_choices(reply):
        other = json.loads(json.dumps(reply["choices"][0]))
        return reply | {"choices": [reply["choices"][0], other]}

    table.body("two choices", two_choices, READ, runs=1)

    def streamed(reply):
        choice = reply["choices"][0]
        choice["delta"] = choice.pop("message")
        return reply

    stream = b'data: {"choices": [{"delta": {"content": "x"}}]}\n\ndata: [DONE]\n\n'
    table.body("an event stream", stream, READ, exact=False, once_exact=LOST)
    for name in ("utf-16", "utf-32", "utf-8-sig"):
        table.raw(f"in {name}", lambda c, name=name: answer(c.decode().encode(name)), READ, runs=1)
    table.body("a delta in place of the message", streamed, READ, runs=1)


def _roles(table):
    for role in ("user", "system", "tool", "developer", "function", "Assistant ", "\ud800"):
        table.body(f"role {role!a}", changed(role=role), LOST)
    for role in (7, ["assistant"], {"assistant": 1}, True):
        table.body(f"role {role!r}", changed(role=role), LOST)
    table.body("role null", changed(role=None), READ, runs=1)
    table.body("role empty", changed(role=""), READ, runs=1)
    table.body("role missing", _without("role"), READ, runs=1)


def _contents(table):
    for name, content in {"a number": 7, "true": True, "a list of numbers": [7]}.items():
        table.body(f"content {name}", said(content=content), LOST)
    table.body("content missing", _without("content"), READ, runs=1)
    table.body("content an object", said(content={"text": "x"}), READ)
    table.body("content null and no calls", said(content=None), READ)
    table.body("content empty and no calls", said(content=""), READ)
    table.body("content a lone surrogate", said(content="\ud800"), READ)
    table.body("content zeros", said(content="a\0b"), READ)
    table.body("content controls", said(content="\x1b[2J\x07\u202e\u2028\x85"), READ)
    table.body("content of 5 MB", said(content="some words\n" * 500_000), READ, heavy=True)
    table.body("content of 100,000 combining marks", said(content="a" + "\u0301" * 100_000), READ, heavy=True)
    parts = {
        "text": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        "output_text": [{"type": "output_text", "text": "a"}],
        "thinking": [{"type": "thinking", "thinking": "a"}, {"type": "text", "text": "b"}],
        "thinking in parts": [{"type": "thinking", "thinking": [{"type": "text", "text": "a"}]}],
        "refusal": [{"type": "refusal", "refusal": "no"}],
        "none": [],
        "null": [None],
        "no type": [{"text": 7}],
        "a text that is an object": [{"type": "text", "text": {}}],
    }
    for name, content in parts.items():
        table.body(f"content of parts: {name}", said(content=content), READ)
    bad = {
        "an image": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/"}}],
        "a list": [[]], "a number": [7], "audio": [{"type": "audio", "data": "x"}],
        "a deep type": [{"type": {"a": []}}],
    }  # fmt: skip
    for name, content in bad.items():
        table.body(f"content of parts: {name}", said(content=content), LOST)


def _reasoning(table):
    values = {
        "a text": "thought", "null": None, "empty": "", "an object": {"text": "a"}, "a list": ["a"],
        "a list of parts": [{"type": "text", "text": "a"}],
        "an object of content": {"content": [{"text": "a"}]},
    }  # fmt: skip
    for field in ("reasoning_content", "reasoning"):
        for name, value in values.items():
            table.body(f"{field} {name}", changed(**{field: value}), READ, runs=1)
    table.body("reasoning_details", changed(reasoning_details=[{"type": "x", "text": 7}]), READ, runs=1)
    table.body("reasoning a lone surrogate", changed(reasoning_content="\udfff"), READ, runs=1)
    table.body("a refusal", said(content=None, refusal="I will not."), READ)
    table.body("a refusal that is an object", said(content=None, refusal={"a": 1}), READ)
    table.body("annotations and audio", changed(annotations=[{"a": 1}], audio={"id": "x"}), READ, runs=1)


def _finish_reasons(table):
    def finished(reason):
        def change(reply):
            reply["choices"][0]["finish_reason"] = reason
            return reply

        return change

    for reason in (
        None,
        "",
        "stop",
        "tool_calls",
        "function_call",
        "eos",
        "end_turn",
        "STOP",
        "whatever",
        "x" * 10_000,
    ):
        name = "long" if reason and len(reason) > 100 else json.dumps(reason)
        table.body(f"finish_reason {name}", finished(reason), READ, runs=1)
    table.body("finish_reason length", finished("length"), READ, runs=1)
    for reason in ("content_filter", "abort", "error"):
        table.body(f"finish_reason {reason}", finished(reason), LOST)
    for reason in (7, True, [], {"type": "stop", "matched": 2}):
        table.body(f"finish_reason {json.dumps(reason)}", finished(reason), READ, runs=1)
    table.body("finish_reason a lone surrogate", finished("\ud800"), READ, runs=1)

    def missing(reply):
        del reply["choices"][0]["finish_reason"]
        return reply

    table.body("finish_reason missing", missing, READ, runs=1)


def _anything(table):
    """What is deep or long in the place of each field."""
    long = "x" * (10 << 20)
    ends = {"role": LOST, "content": LOST, "tool_calls": LOST}
    for name in ("role", "content", "reasoning_content", "refusal", "tool_calls", "function_call"):
        fields = {name: DEEP} if name in ("role", "tool_calls") else {"tool_calls": None, name: DEEP}
        deep = lambda reply, fields=fields: nested(changed(**fields)(reply))  # noqa: E731
        table.body(f"a deep {name}", deep, ends.get(name, READ))
    for name in ("message", "finish_reason"):
        table.body(
            f"a choice with a deep {name}",
            lambda r, name=name: nested(_in_choice(r, **{name: DEEP})),
            LOST if name == "message" else READ,
            runs=0 if name == "message" else 1,
        )
    table.body("a role of 10 MB", changed(role=long), LOST, heavy=True)
    table.body(
        "a finish_reason of 10 MB", lambda r: _in_choice(r, finish_reason=long), READ, runs=1, heavy=True
    )
    table.body(
        "a finish_reason of 10 MB of i",
        lambda r: _in_choice(r, finish_reason="i" * len(long)),
        READ,
        runs=1,
        heavy=True,
    )


def _in_choice(reply, **fields):
    reply["choices"][0] |= fields
    return reply
