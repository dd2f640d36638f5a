"""Faults of the tool calls in a chat reply: their shapes, names, ids and arguments."""

import json

from tests.adversarial.fault_kinds import DEEP, LOST, READ, Kinds, nested
from tests.adversarial.message_faults import POISON, changed, message_of, said


def kinds():
    table = Kinds(wire="chat")
    _calls(table)
    _arguments(table)
    _names_and_ids(table)
    _deep(table)
    return table.faults


def _calls(table):
    values = {"a text": "x", "of texts": ["x"], "of lists": [[]], "a number": 7}
    for name, value in values.items():
        table.body(f"tool_calls {name}", changed(tool_calls=value), LOST)
    table.body("tool_calls null", changed(tool_calls=None), READ)
    for name, value in {"an object": {}, "of null": [None], "of nothing": [{}]}.items():
        table.body(f"tool_calls {name}", changed(tool_calls=value), READ)
    table.body("tool_calls empty", changed(tool_calls=[]), READ)
    table.body("a call without function", _call(lambda call: call.pop("function")), READ)
    table.body("a call of type custom", _call(_custom), READ)
    table.body("a call without type", _call(lambda call: call.pop("type")), READ, runs=1)
    table.body("a call with an index", _call(lambda call: call.update(index=7)), READ, runs=1)
    table.body("a call with a status", _call(lambda call: call.update(status="invalid_json")), READ, runs=1)
    table.body("10,000 calls of no tool", _many_calls, READ, heavy=True)

    def legacy(reply):
        message = message_of(reply)
        message["function_call"] = message.pop("tool_calls")[0]["function"]
        reply["choices"][0]["finish_reason"] = "function_call"
        return reply

    table.body("a legacy function_call", legacy, READ, runs=1)
    table.body("function_call null", changed(function_call=None), READ, runs=1)
    table.body(
        "function_call beside tool_calls",
        changed(function_call={"name": "note", "arguments": "{}"}),
        READ,
        runs=1,
    )
    texts = {
        "an unknown format": f'CALL note(token="{POISON}")',
        "a code block": f'```json\n{{"name": "note", "arguments": {{"token": "{POISON}"}}}}\n```',
        "a quoted reply": json.dumps({"tool_calls": [{"function": {"name": "note", "arguments": POISON}}]}),
    }
    for name, content in texts.items():
        table.body(f"a call in text: {name}", said(content=content), READ)


def _call(change):
    def changed(reply):
        change(message_of(reply)["tool_calls"][0])
        return reply

    return changed


def _custom(call):
    call["type"] = "custom"
    call["custom"] = {"name": "note", "input": POISON}
    del call["function"]


def _many_calls(reply):
    function = {"name": "nothing", "arguments": "{}"}
    calls = [{"id": str(n), "type": "function", "function": function} for n in range(10_000)]
    return changed(tool_calls=calls)(reply)


def _function(**fields):
    return _call(lambda call: call["function"].update(fields))


def _arguments(table):
    token = {"token": POISON}
    refused = {
        "null": None, "empty": "", "blanks": "  ", "a broken object": '{"token": "poison"', "a list": "[1]",
        "a text": '"poison"', "a number": "7", "true": "true", "null in text": "null",
        "NaN": '{"token": NaN}',
        "twice JSON": json.dumps(json.dumps(token)), "single quotes": "{'token': 'poison'}",
        "an unknown field": json.dumps({"tokens": POISON}), "one field more": json.dumps(token | {"x": 1}),
        "a token that is an object": json.dumps({"token": token}),
        "a token that is a list": json.dumps({"token": [POISON]}),
        "a token that is null": '{"token": null}', "a token that is a number": '{"token": 7}',
        "deep": '{"token":' * 10_000, "a deep list": '{"token":' + "[" * 100_000,
        "python": f"token={POISON!r}",
        "something after it": json.dumps(token) + " and so on",
        "a huge number": '{"token": ' + "9" * 10_000 + "}",
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
    for name in (
        "missing",
        "__class__",
        "note ",
        "NOTE",
        "n\u043ete",
        "note\0",
        "note;note",
        "../note",
        "functions.note",
        "*",
    ):
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
        message = message_of(reply)
        bad = {
            "id": message["tool_calls"][0]["id"],
            "type": "function",
            "function": {"name": "no", "arguments": "{}"},
        }
        message["tool_calls"].append(bad)
        return reply

    table.body("two calls of one id", twice, READ, runs=1)


def _deep(table):
    for name, expected in {"name": READ, "arguments": LOST}.items():
        change = _function(**{name: DEEP})
        table.body(f"a deep {name} of a call", lambda r, change=change: nested(change(r)), expected)
    for name, runs in {"id": 1, "function": 0}.items():
        change = _call(lambda call, name=name: call.update({name: DEEP}))
        table.body(f"a call with a deep {name}", lambda r, change=change: nested(change(r)), READ, runs=runs)
