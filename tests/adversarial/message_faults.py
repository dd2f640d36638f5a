"""Faults of the message in a chat reply and of its calls: shapes, roles, contents, arguments, ends."""

import json

from tests.adversarial.fault_kinds import DEEP, LOST, READ, RETRIED, Kinds, nested
from tests.adversarial.hostile_server import answer

POISON = "poison"
"""Begins what the tool must never be given."""


def kinds():
    table = Kinds(wire="chat")
    _messages(table)
    _contents(table)
    _finish_reasons(table)
    _calls(table)
    _arguments(table)
    _names_and_ids(table)
    _deep_or_long(table)
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
    table.body("an event stream", stream, READ, exact=False, once_exact=LOST)
    table.raw("in utf-16", lambda c: answer(c.decode().encode("utf-16")), READ, runs=1)
    for role in ("user", "tool", "Assistant ", "\ud800", 7, ["assistant"], True):
        table.body(f"role {role!a}", changed(role=role), LOST)
    table.body("role null", changed(role=None), READ, runs=1)
    table.body("role missing", _without("role"), READ, runs=1)


def _contents(table):
    for name, content in {"a number": 7, "true": True, "a list of numbers": [7]}.items():
        table.body(f"content {name}", said(content=content), LOST)
    table.body("content missing", _without("content"), READ, runs=1)
    table.body("content an object and no calls", said(content={"text": "x"}), LOST)
    for name, content in {"null": None, "empty": "", "a lone surrogate": "\ud800",
                          "controls": "\x1b[2J\x07\u202e\u2028\x85\0"}.items():  # fmt: skip
        table.body(f"content {name} and no calls", said(content=content), READ)
    table.body("content of 5 MB", said(content="some words\n" * 500_000), READ, heavy=True)
    parts = {
        "text": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        "thinking in parts": [{"type": "thinking", "thinking": [{"type": "text", "text": "a"}]}],
        "refusal": [{"type": "refusal", "refusal": "no"}],
        "none": [],
        "null": [None],
    }
    for name, content in parts.items():
        table.body(f"content of parts: {name}", said(content=content), READ)
    bad = {
        "an image": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/"}}],
        "a list": [[]],
        "a deep type": [{"type": {"a": []}}],
        "a text that is an object": [{"type": "text", "text": {}}],
    }
    for name, content in bad.items():
        table.body(f"content of parts: {name}", said(content=content), LOST)
    reasoning = {"a text": "thought", "an object": {"text": "a"}, "a list of parts": [{"text": "a"}],
                 "a lone surrogate": "\udfff"}  # fmt: skip
    for name, value in reasoning.items():
        table.body(f"reasoning_content {name}", changed(reasoning_content=value), READ, runs=1)
        table.body(f"reasoning {name}", changed(reasoning=value), READ, runs=1)
    table.body("a refusal", said(content=None, refusal="I will not."), READ)
    table.body("a refusal that is an object", said(content=None, refusal={"a": 1}), LOST)


def _finish_reasons(table):
    for reason in (None, "", "stop", "eos", "length", "\ud800", {"type": "stop", "matched": 2}):
        name = f"finish_reason {json.dumps(reason)}"
        table.body(name, _in_choice(finish_reason=reason), READ, runs=1)
    for reason in ("content_filter", 7, []):
        table.body(f"finish_reason {reason}", _in_choice(finish_reason=reason), LOST)
    for reason in ("abort", "error"):
        table.body(f"finish_reason {reason}", _in_choice(finish_reason=reason), RETRIED)


def _calls(table):
    for name, value in {
        "a text": "x",
        "of texts": ["x"],
        "of lists": [[]],
        "a number": 7,
        "an object": {},
    }.items():
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
    table.body("a call without type", _call(lambda call: call.pop("type")), READ, runs=1)
    table.body("a call with a status", _call(lambda call: call.update(status="invalid_json")), READ, runs=1)
    table.body("10,000 calls of no tool", many_calls, READ, heavy=True)
    table.body("a legacy function_call", legacy, READ, runs=1)
    beside = changed(function_call={"name": "note", "arguments": "{}"})
    table.body("function_call beside tool_calls", beside, READ, runs=1)
    texts = {
        "a code block": f'```json\n{{"name": "note", "arguments": {{"token": "{POISON}"}}}}\n```',
        "a quoted reply": json.dumps({"tool_calls": [{"function": {"name": "note", "arguments": POISON}}]}),
    }
    for name, content in texts.items():
        table.body(f"a call in text: {name}", said(content=content), READ)


def _arguments(table):
    token = {"token": POISON}
    refused = {
        "null": None, "empty": "", "a broken object": '{"token": "poison"', "a list": "[1]",
        "NaN": '{"token": NaN}', "twice JSON": json.dumps(json.dumps(token)),
        "single quotes": "{'token': 'poison'}", "one field more": json.dumps(token | {"x": 1}),
        "a token that is a list": json.dumps({"token": [POISON]}), "a token that is null": '{"token": null}',
        "deep": '{"token":' * 10_000, "something after it": json.dumps(token) + " and so on",
        "a huge number": '{"token": ' + "9" * 10_000 + "}", "a lone surrogate": '{"token": "\\ud800"}',
        "an object that does not fit": {"x": POISON}, "of type list": [POISON], "of type bool": True,
    }  # fmt: skip
    for name, value in refused.items():
        table.body(f"arguments {name}", _function(arguments=value), READ)
    table.body("arguments of 2 MB", _function(arguments=json.dumps({"x": "y" * (2 << 20)})), READ, heavy=True)
    table.body("arguments missing", _call(lambda call: call["function"].pop("arguments")), READ)

    def as_object(call):
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])

    table.body("arguments an object", _call(as_object), READ, runs=1)


def _names_and_ids(table):
    for name in (
        "missing",
        "__class__",
        "note ",
        "NOTE",
        "n\u043ete",
        "note\0",
        "functions.note",
        "",
        "\ud800",
    ):
        table.body(f"a name that is no tool: {name!a}", _function(name=name), READ)
    table.body("a name of 1 MB", _function(name="n" * (1 << 20)), READ, heavy=True)
    table.body("a name missing", _call(lambda call: call["function"].pop("name")), READ)
    for value, expected in ((None, READ), (7, LOST), ({"a": 1}, LOST)):
        table.body(f"a name of type {type(value).__name__}", _function(name=value), expected)
    table.body("call id 7", _call(lambda call: call.update(id=7)), LOST)
    for value in (None, "", "x" * 10_000, "a b\n\u202e", "\ud800"):
        name = "long" if isinstance(value, str) and len(value) > 100 else ascii(value)
        table.body(f"call id {name}", _call(lambda call, value=value: call.update(id=value)), READ, runs=1)
    table.body("call id missing", _call(lambda call: call.pop("id")), READ, runs=1)

    def twice(reply):
        calls = message_of(reply)["tool_calls"]
        function = {"name": "no", "arguments": "{}"}
        calls.append({"id": calls[0]["id"], "type": "function", "function": function})
        return reply

    table.body("two calls of one id", twice, READ, runs=1)


def _deep_or_long(table):
    """What is deep or long in the place of each field."""
    for name in ("role", "content", "tool_calls", "refusal"):
        fields = {name: DEEP} if name in ("role", "tool_calls") else {"tool_calls": None, name: DEEP}
        deep = lambda reply, fields=fields: nested(changed(**fields)(reply))  # noqa: E731
        table.body(f"a deep {name}", deep, RETRIED)
    table.body("a deep message", lambda r: nested(_in_choice(message=DEEP)(r)), RETRIED)
    table.body("a deep finish_reason", lambda r: nested(_in_choice(finish_reason=DEEP)(r)), RETRIED)
    table.body("a deep name of a call", lambda r: nested(_function(name=DEEP)(r)), RETRIED)
    table.body("deep arguments of a call", lambda r: nested(_function(arguments=DEEP)(r)), RETRIED)
    long = "x" * (10 << 20)
    table.body("a role of 10 MB", changed(role=long), LOST, heavy=True)
    table.body("a finish_reason of 10 MB", _in_choice(finish_reason=long), READ, runs=1, heavy=True)
