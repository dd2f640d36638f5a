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
    _calls(table)
    _arguments(table)
    _names_and_ids(table)
    _finish_reasons(table)
    _anything(table)
    return table.faults


def _message(reply):
    return reply["choices"][0]["message"]


def _changed(**fields):
    def change(reply):
        _message(reply).update(fields)
        return reply

    return change


def _without(name):
    def change(reply):
        del _message(reply)[name]
        return reply

    return change


def _said(**fields):
    """A message without tool calls."""
    return _changed(tool_calls=None, **fields)


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
    table.body("an event stream", stream, READ, exact=False)
    for name in ("utf-16", "utf-32", "utf-8-sig"):
        table.raw(f"in {name}", lambda c, name=name: answer(c.decode().encode(name)), READ, runs=1)
    table.body("a delta in place of the message", streamed, READ, runs=1)


def _roles(table):
    for role in ("user", "system", "tool", "developer", "function", "Assistant ", "\ud800"):
        table.body(f"role {role!a}", _changed(role=role), LOST)
    for role in (7, ["assistant"], {"assistant": 1}, True):
        table.body(f"role {role!r}", _changed(role=role), LOST)
    table.body("role null", _changed(role=None), READ, runs=1)
    table.body("role empty", _changed(role=""), READ, runs=1)
    table.body("role missing", _without("role"), READ, runs=1)


def _contents(table):
    for name, content in {"a number": 7, "true": True, "a list of numbers": [7]}.items():
        table.body(f"content {name}", _said(content=content), LOST)
    table.body("content missing", _without("content"), READ, runs=1)
    table.body("content an object", _said(content={"text": "x"}), READ)
    table.body("content null and no calls", _said(content=None), READ)
    table.body("content empty and no calls", _said(content=""), READ)
    table.body("content a lone surrogate", _said(content="\ud800"), READ)
    table.body("content zeros", _said(content="a\0b"), READ)
    table.body("content controls", _said(content="\x1b[2J\x07\u202e\u2028\x85"), READ)
    table.body("content of 5 MB", _said(content="some words\n" * 500_000), READ, heavy=True)
    table.body("content of 100,000 combining marks", _said(content="a" + "\u0301" * 100_000), READ, heavy=True)
    parts = {
        "text": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        "output_text": [{"type": "output_text", "text": "a"}],
        "thinking": [{"type": "thinking", "thinking": "a"}, {"type": "text", "text": "b"}],
        "thinking in parts": [{"type": "thinking", "thinking": [{"type": "text", "text": "a"}]}],
        "refusal": [{"type": "refusal", "refusal": "no"}],
        "none": [], "null": [None], "no type": [{"text": 7}], "a text that is an object": [{"type": "text", "text": {}}],
    }
    for name, content in parts.items():
        table.body(f"content of parts: {name}", _said(content=content), READ)
    bad = {
        "an image": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/"}}],
        "a list": [[]], "a number": [7], "audio": [{"type": "audio", "data": "x"}], "a deep type": [{"type": {"a": []}}],
    }  # fmt: skip
    for name, content in bad.items():
        table.body(f"content of parts: {name}", _said(content=content), LOST)


def _reasoning(table):
    values = {
        "a text": "thought", "null": None, "empty": "", "an object": {"text": "a"}, "a list": ["a"],
        "a list of parts": [{"type": "text", "text": "a"}], "an object of content": {"content": [{"text": "a"}]},
    }  # fmt: skip
    for field in ("reasoning_content", "reasoning"):
        for name, value in values.items():
            table.body(f"{field} {name}", _changed(**{field: value}), READ, runs=1)
    table.body("reasoning_details", _changed(reasoning_details=[{"type": "x", "text": 7}]), READ, runs=1)
    table.body("reasoning a lone surrogate", _changed(reasoning_content="\udfff"), READ, runs=1)
    table.body("a refusal", _said(content=None, refusal="I will not."), READ)
    table.body("a refusal that is an object", _said(content=None, refusal={"a": 1}), READ)
    table.body("annotations and audio", _changed(annotations=[{"a": 1}], audio={"id": "x"}), READ, runs=1)


def _calls(table):
    values = {"a text": "x", "of texts": ["x"], "of lists": [[]], "a number": 7}
    for name, value in values.items():
        table.body(f"tool_calls {name}", _changed(tool_calls=value), LOST)
    table.body("tool_calls null", _changed(tool_calls=None), READ)
    for name, value in {"an object": {}, "of null": [None], "of nothing": [{}]}.items():
        table.body(f"tool_calls {name}", _changed(tool_calls=value), READ)
    table.body("tool_calls empty", _changed(tool_calls=[]), READ)
    table.body("a call without function", _call(lambda call: call.pop("function")), READ)
    table.body("a call of type custom", _call(_custom), READ)
    table.body("a call without type", _call(lambda call: call.pop("type")), READ, runs=1)
    table.body("a call with an index", _call(lambda call: call.update(index=7)), READ, runs=1)
    table.body("a call with a status", _call(lambda call: call.update(status="invalid_json")), READ, runs=1)
    table.body("10,000 calls of no tool", _many_calls, READ, heavy=True)

    def legacy(reply):
        message = _message(reply)
        message["function_call"] = message.pop("tool_calls")[0]["function"]
        reply["choices"][0]["finish_reason"] = "function_call"
        return reply

    table.body("a legacy function_call", legacy, READ, runs=1)
    table.body("function_call null", _changed(function_call=None), READ, runs=1)
    table.body("function_call beside tool_calls", _changed(function_call={"name": "note", "arguments": "{}"}), READ, runs=1)
    texts = {
        "an unknown format": f'CALL note(token="{POISON}")',
        "a code block": f'```json\n{{"name": "note", "arguments": {{"token": "{POISON}"}}}}\n```',
        "a quoted reply": json.dumps({"tool_calls": [{"function": {"name": "note", "arguments": POISON}}]}),
    }
    for name, content in texts.items():
        table.body(f"a call in text: {name}", _said(content=content), READ)


def _call(change):
    def changed(reply):
        change(_message(reply)["tool_calls"][0])
        return reply

    return changed


def _custom(call):
    call["type"] = "custom"
    call["custom"] = {"name": "note", "input": POISON}
    del call["function"]


def _many_calls(reply):
    function = {"name": "nothing", "arguments": "{}"}
    calls = [{"id": str(n), "type": "function", "function": function} for n in range(10_000)]
    return _changed(tool_calls=calls)(reply)


def _function(**fields):
    return _call(lambda call: call["function"].update(fields))


def _arguments(table):
    token = {"token": POISON}
    refused = {
        "null": None, "empty": "", "blanks": "  ", "a broken object": '{"token": "poison"', "a list": "[1]",
        "a text": '"poison"', "a number": "7", "true": "true", "null in text": "null", "NaN": '{"token": NaN}',
        "twice JSON": json.dumps(json.dumps(token)), "single quotes": "{'token': 'poison'}",
        "an unknown field": json.dumps({"tokens": POISON}), "one field more": json.dumps(token | {"x": 1}),
        "a token that is an object": json.dumps({"token": token}), "a token that is a list": json.dumps({"token": [POISON]}),
        "a token that is null": '{"token": null}', "a token that is a number": '{"token": 7}',
        "deep": '{"token":' * 10_000, "a deep list": '{"token":' + "[" * 100_000, "python": f"token={POISON!r}",
        "something after it": json.dumps(token) + " and so on", "a huge number": '{"token": ' + "9" * 10_000 + "}",
        "a lone surrogate": '{"token": "\\ud800"}',
    }  # fmt: skip
    for name, value in refused.items():
        table.body(f"arguments {name}", _function(arguments=value), READ)
    table.body("arguments an object that fits not", _function(arguments={"x": POISON}), READ)
    table.body("arguments of 2 MB", _function(arguments=json.dumps({"x": "y" * (2 << 20)})), READ, heavy=True)
    for name, value in {"a list": [POISON], "a number": 7, "true": True}.items():
        table.body(f"arguments of type {name}", _function(arguments=value), READ)
    table.body("arguments missing", _call(lambda call: call["function"].pop("arguments")), READ)

    def as_object(call):
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])

    def spaced(call):
        call["function"]["arguments"] = "\n\t " + call["function"]["arguments"] + " \n"

    table.body("arguments an object", _call(as_object), READ, runs=1)
    table.body("arguments between blanks", _call(spaced), READ, runs=1)


def _names_and_ids(table):
    for name in ("missing", "__class__", "note ", "NOTE", "n\u043ete", "note\0", "note;note", "../note", "functions.note", "*"):
        table.body(f"a name that is no tool: {name!a}", _function(name=name), READ)
    table.body("a name of 1 MB", _function(name="n" * (1 << 20)), READ, heavy=True)
    table.body("a name empty", _function(name=""), READ)
    table.body("a name missing", _call(lambda call: call["function"].pop("name")), READ)
    for value in (None, 7, [], {}):
        table.body(f"a name of type {type(value).__name__}", _function(name=value), READ)
    table.body("a name that is a lone surrogate", _function(name="\ud800"), READ)
    for value in (None, "", "x" * 10_000, "a b\n", "\u202e"):
        name = "long" if value and len(value) > 100 else ascii(value)
        table.body(f"call id {name}", _call(lambda call, value=value: call.update(id=value)), READ, runs=1)
    table.body("call id missing", _call(lambda call: call.pop("id")), READ, runs=1)
    table.body("call id a number", _call(lambda call: call.update(id=7)), READ, runs=1)
    table.body("call id a lone surrogate", _call(lambda call: call.update(id="\ud800")), READ, runs=1)

    def twice(reply):
        message = _message(reply)
        bad = {"id": message["tool_calls"][0]["id"], "type": "function", "function": {"name": "no", "arguments": "{}"}}
        message["tool_calls"].append(bad)
        return reply

    table.body("two calls of one id", twice, READ, runs=1)


def _finish_reasons(table):
    def finished(reason):
        def change(reply):
            reply["choices"][0]["finish_reason"] = reason
            return reply

        return change

    for reason in (None, "", "stop", "tool_calls", "function_call", "eos", "end_turn", "STOP", "whatever", "x" * 10_000):
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
        deep = lambda reply, fields=fields: nested(_changed(**fields)(reply))  # noqa: E731
        table.body(f"a deep {name}", deep, ends.get(name, READ))
    for name, expected in {"name": READ, "arguments": LOST}.items():
        table.body(f"a deep {name} of a call", lambda r, name=name: nested(_function(**{name: DEEP})(r)), expected)
    for name in ("id", "function"):
        expected = {"runs": 1} if name == "id" else {}
        deep = lambda r, name=name: nested(_call(lambda call: call.update({name: DEEP}))(r))  # noqa: E731
        table.body(f"a call with a deep {name}", deep, READ, **expected)
    for name in ("message", "finish_reason"):
        table.body(
            f"a choice with a deep {name}",
            lambda r, name=name: nested(_in_choice(r, **{name: DEEP})),
            LOST if name == "message" else READ,
            runs=0 if name == "message" else 1,
        )
    table.body("a role of 10 MB", _changed(role=long), LOST, heavy=True)
    table.body("a finish_reason of 10 MB", lambda r: _in_choice(r, finish_reason=long), READ, runs=1, heavy=True)
    table.body("a finish_reason of 10 MB of i", lambda r: _in_choice(r, finish_reason="i" * len(long)), READ, runs=1, heavy=True)


def _in_choice(reply, **fields):
    reply["choices"][0] |= fields
    return reply
