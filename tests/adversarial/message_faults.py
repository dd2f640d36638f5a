"""Faults of the message in a chat reply and of its calls: shapes, roles, contents, arguments, ends."""

import json

from tests.adversarial.fault_kinds import LOST, READ, RETRIED, Kinds
from tests.adversarial.hostile_server import answer

POISON = "poison"
"""Begins what the tool must never be given."""


def kinds():
    table = Kinds(wire="chat")
    _messages(table)
    _contents(table)
    _calls(table)
    _arguments(table)
    _names_and_ids(table)
    return table.faults


def message_of(reply):
    return reply["choices"][0]["message"]


def changed(**fields):
    def change(reply):
        message_of(reply).update(fields)
        return reply

    return change


def said(**fields):
    """A message without tool calls."""
    return changed(tool_calls=None, **fields)


def _without(name):
    def change(reply):
        del message_of(reply)[name]
        return reply

    return change


def _in_choice(**fields):
    def change(reply):
        reply["choices"][0] |= fields
        return reply

    return change


def _call(change):
    def changed(reply):
        change(message_of(reply)["tool_calls"][0])
        return reply

    return changed


def _function(**fields):
    return _call(lambda call: call["function"].update(fields))


def _messages(table):
    for name, value in {"null": None, "a text": "x", "a list": [], "empty": {}}.items():
        expected = LOST if name in ("a text", "a list") else RETRIED
        table.body(f"message {name}", _in_choice(message=value), expected)

    def two_choices(reply):
        other = json.loads(json.dumps(reply["choices"][0]))
        return reply | {"choices": [reply["choices"][0], other]}

    def streamed(reply):
        choice = reply["choices"][0]
        choice["delta"] = choice.pop("message")
        return reply

    table.body("two choices", two_choices, READ, runs=1)
    table.body("a delta in place of the message", streamed, READ, runs=1)
    stream = b'data: {"choices": [{"delta": {"content": "x"}}]}\n\ndata: [DONE]\n\n'
    table.body("an event stream", stream, READ, exact=False)
    table.raw("in utf-16", lambda c: answer(c.decode().encode("utf-16")), READ, runs=1)
    for role in ("user", 7):
        table.body(f"role {role!a}", changed(role=role), LOST)
    table.body("role missing", _without("role"), READ, runs=1)


def _contents(table):
    for name, content in {"a number": 7, "a list of numbers": [7], "an object": {"text": "x"}}.items():
        table.body(f"content {name}", said(content=content), LOST)
    table.body("content missing", _without("content"), READ, runs=1)
    for name, content in {"null": None, "empty": "", "a lone surrogate": "\ud800",
                          "controls": "\x1b[2J\x07\u202e\u2028\x85\0"}.items():  # fmt: skip
        table.body(f"content {name} and no calls", said(content=content), READ)
    table.body("content of 5 MB", said(content="some words\n" * 500_000), READ, heavy=True)
    table.body("content of parts", said(content=[{"type": "text", "text": "a"}]), READ)
    image = {"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/"}}
    table.body("content of an image", said(content=[image]), LOST)
    table.body("reasoning an object", changed(reasoning={"text": "a"}), READ, runs=1)
    table.body("a refusal", said(content=None, refusal="I will not."), READ)
    for reason, expected in (("content_filter", LOST), ("abort", RETRIED)):
        table.body(f"finish_reason {reason}", _in_choice(finish_reason=reason), expected)


def _calls(table):
    for name, value in {"a text": "x", "of lists": [[]], "an object": {}}.items():
        table.body(f"tool_calls {name}", changed(tool_calls=value), LOST)
    for name, value in {"null": None, "of null": [None], "of nothing": [{}]}.items():
        table.body(f"tool_calls {name}", changed(tool_calls=value), READ)

    def custom(call):
        call["type"] = "custom"
        call["custom"] = {"name": "note", "input": POISON}
        del call["function"]

    def many_calls(reply):
        function = {"name": "nothing", "arguments": "{}"}
        calls = [{"id": str(n), "type": "function", "function": function} for n in range(10_000)]
        return changed(tool_calls=calls)(reply)

    def legacy(reply):
        message = message_of(reply)
        message["function_call"] = message.pop("tool_calls")[0]["function"]
        return _in_choice(finish_reason="function_call")(reply)

    table.body("a call without function", _call(lambda call: call.pop("function")), READ)
    table.body("a call of type custom", _call(custom), READ)
    table.body("10,000 calls of no tool", many_calls, READ, heavy=True)
    table.body("a legacy function_call", legacy, READ, runs=1)
    quoted = json.dumps({"tool_calls": [{"function": {"name": "note", "arguments": POISON}}]})
    table.body("a call in text", said(content=quoted), READ)


def _arguments(table):
    token = {"token": POISON}
    refused = {
        "null": None, "a broken object": '{"token": "poison"', "a list": "[1]",
        "twice JSON": json.dumps(json.dumps(token)), "one field more": json.dumps(token | {"x": 1}),
        "deep": '{"token":' * 10_000, "something after it": json.dumps(token) + " and so on",
        "a lone surrogate": '{"token": "\\ud800"}', "an object that does not fit": {"x": POISON},
    }  # fmt: skip
    for name, value in refused.items():
        table.body(f"arguments {name}", _function(arguments=value), READ)
    table.body("arguments of 2 MB", _function(arguments=json.dumps({"x": "y" * (2 << 20)})), READ, heavy=True)
    table.body("arguments missing", _call(lambda call: call["function"].pop("arguments")), READ)

    def as_object(call):
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])

    table.body("arguments an object", _call(as_object), READ, runs=1)


def _names_and_ids(table):
    for name in ("__class__", "n\u043ete", "", "\ud800"):
        table.body(f"a name that is no tool: {name!a}", _function(name=name), READ)
    table.body("a name of 1 MB", _function(name="n" * (1 << 20)), READ, heavy=True)
    table.body("a name missing", _call(lambda call: call["function"].pop("name")), READ)
    table.body("call id 7", _call(lambda call: call.update(id=7)), LOST)
    for name, value in {"null": None, "long": "x" * 10_000, "half a character": "\ud800"}.items():
        table.body(f"call id {name}", _call(lambda call, value=value: call.update(id=value)), READ, runs=1)

    def twice(reply):
        calls = message_of(reply)["tool_calls"]
        function = {"name": "no", "arguments": "{}"}
        calls.append({"id": calls[0]["id"], "type": "function", "function": function})
        return reply

    table.body("two calls of one id", twice, READ, runs=1)
