"""Faults of status codes and bodies: errors in every dress, and JSON that is no completion."""

import json

from tests.adversarial.fault_kinds import DEEP, LOST, OVERFLOW, READ, RETRIED, Kinds, nested
from tests.adversarial.hostile_server import answer

SECRET = "s3cr3t-t0ken"
"""Stands in what hostile servers answer, as a credential in a URL: nobody may see it."""
_LEAK = f"see http://user:{SECRET}@127.0.0.1:9/?api_key={SECRET}\n\x1b[2J\u202eand more"


def kinds():
    table = Kinds()
    _statuses(table)
    _redirects(table)
    _waits(table)
    _error_bodies(table)
    _errors_in_a_200(table)
    _no_json(table)
    _odd_json(table)
    _envelopes(table)
    return table.faults


def _error(message=_LEAK, **fields):
    return {"error": {"message": message, **fields}}


def _statuses(table):
    for status in (400, 401, 402, 403, 404, 405, 406, 408, 409, 410, 411, 413, 415, 418, 422, 451, 499):
        table.body(f"status {status}", _error(), LOST, status=status)
    for status in (429, 500, 501, 502, 503, 504, 505, 507, 511, 520, 529, 599):
        table.body(f"status {status}", _error(), RETRIED, status=status)
    for status in (204, 205):
        table.raw(f"status {status}", f"HTTP/1.1 {status} X\r\n\r\n".encode(), LOST)
    table.body("status 201 around an answer", lambda reply: reply, READ, status=201, runs=1)
    table.raw("status 206, half of it", lambda c: answer(c[: len(c) // 2], status=206), LOST)
    table.raw("status 999", lambda c: answer(c, status=999), LOST)
    table.raw("status 600", lambda c: answer(c, status=600), LOST)


def _redirects(table):
    elsewhere = f"http://user:{SECRET}@127.0.0.1:9/v1?key={SECRET}"
    for status in (300, 301, 302, 303, 307, 308):
        table.body(f"status {status} elsewhere", b"", LOST, status=status, headers=[f"Location: {elsewhere}"])
    odd = {
        "nowhere": [],
        "to itself": ["Location: /v1/chat/completions"],
        "to a file": ["Location: file:///etc"],
    }
    for name, headers in odd.items():
        table.body(f"status 307 {name}", b"", LOST, status=307, headers=headers)
    table.raw("status 304", b"HTTP/1.1 304 X\r\n\r\n", LOST)
    table.body("status 305 by a proxy", b"", LOST, status=305, headers=["Location: http://127.0.0.1:9"])


def _waits(table):
    values = {
        "0": "0", "-5": "-5", "a fraction": "0.001", "huge": "1e300", "infinite": "inf", "nan": "nan",
        "text": "soon",
        "empty": "", "a date gone by": "Wed, 21 Oct 2015 07:28:00 GMT", "a date without a zone": "2015-10-21",
        "a date of the year 9999": "Fri, 31 Dec 9999 23:59:59 GMT",
        "a date of no calendar": "Wed, 99 Foo 2015",
        "of 10,000 digits": "9" * 10_000, "in other digits": "\u0661",
    }  # fmt: skip
    for name, value in values.items():
        header = f"Retry-After: {value}".encode().decode("latin-1")
        waits = name in ("huge", "a date of the year 9999", "of 10,000 digits")
        table.body(f"429, retry after {name}", _error(), RETRIED, status=429, headers=[header], stalls=waits)
    table.body("503, retry after 0", _error(), RETRIED, status=503, headers=["Retry-After: 0"])
    twice = ["Retry-After: 0", "Retry-After: 99999"]
    table.body("429, two waits", _error(), RETRIED, status=429, headers=twice)


def _error_bodies(table):
    bodies = {
        "empty": b"", "a text": b"broken", "html": b"<html><h1>502</h1></html>", "null": b"null",
        "a list": b"[1]",
        "an error that is a text": {"error": "x"}, "an error that is null": {"error": None},
        "an error that is a list": {"error": [{"message": "x"}]},
        "a message that is an object": _error({"a": 1}),
        "a message that is null": _error(None), "a code that is an object": _error(code={"a": [1]}),
        "fastapi's": {"detail": [{"loc": ["body"], "msg": "field required"}]},
        "no utf-8": b'{"error": "\xff\xfe"}',
        "deep": b'{"error":' * 50_000, "a lone surrogate": b'{"error": {"message": "\\ud800"}}',
    }  # fmt: skip
    for name, made in bodies.items():
        table.body(f"500 and {name}", made, RETRIED, status=500)
    table.body("400 and a deep body", b'{"error":' * 50_000, LOST, status=400)
    for status, expected in ((200, LOST), (400, LOST), (500, RETRIED)):
        for field in ("code", "type", "message", "param"):
            name = f"{status} and an error with a deep {field}"
            table.body(name, nested(_error() | {"error": {field: DEEP}}), expected, status=status)
        table.body(f"{status} and a deep error", nested({"error": DEEP}), expected, status=status)
        table.body(f"{status} and a code of 90 kB", _error(code="x" * 90_000), expected, status=status)
    table.body("400 and 20 MB", lambda _: _error("x" * (20 << 20)), LOST, status=400, heavy=True)
    table.body("400 and a text of nothing but URLs", _error("http://" * 100_000), LOST, status=400)
    overflows = {
        "openai": _error("This model's maximum context length is 5 tokens.", code="context_length_exceeded"),
        "vllm": _error("The decoder prompt (length 9) is longer than the maximum model length of 5."),
        "sglang": _error("The input (9 tokens) is longer than the model's context length (5 tokens)."),
        "llama.cpp": _error(
            "the request exceeds the available context size", type="exceed_context_size_error"
        ),
    }
    for name, made in overflows.items():
        table.body(f"too long a prompt, as {name} says", made, OVERFLOW, status=400)


def _errors_in_a_200(table):
    for code in (400, 401, 403, 404, 408, "invalid_request_error", None, [], {"a": 1}, True, -1, 10**30):
        table.body(f"200, an error of code {json.dumps(code)[:20]}", _error(code=code), LOST)
    for code in (429, "429", 500, 502, 503, 529):
        table.body(f"200, an error of code {json.dumps(code)}", _error(code=code), RETRIED)
    table.body("200, an error that is a text", {"error": "no"}, LOST)
    table.body("200, an error beside null choices", lambda r: _error(code=502) | {"choices": None}, RETRIED)
    table.body(
        "200, an error of a choice", lambda r: _in_choice(r, error={"code": 502, "message": "x"}), RETRIED
    )
    table.body("200, an error that is null", lambda r: r | {"error": None}, READ, runs=1)
    table.body("200, vllm's object error", {"object": "error", "message": "x", "code": 400}, LOST)


def _in_choice(reply, **fields):
    reply["choices"][0] |= fields
    return reply


def _no_json(table):
    bodies = {
        "nothing": b"", "blanks": b"   ", "html": b"<html>", "a list": b"[1,2]", "a text": b'"x"',
        "null": b"null",
        "a number": b"7", "NaN": b"NaN", "deep lists": b"[" * 200_000,
        "deep objects": b'{"choices":' * 100_000,
        "zeros": bytes(1000),
        "a cut object": b'{"choices": [{"mess', "a long number": b'{"choices": ' + b"9" * 100_000,
        "an event stream without an end": b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n',
        "lines of JSON": b'{"model": "m", "done": false}\n{"model": "m", "done": true}\n',
        "a csv": b"a,b\n1,2\n", "xml": b'<?xml version="1.0"?><a/>', "a pickle": b"\x80\x04\x95.",
        "a pdf": b"%PDF-1.7",
    }  # fmt: skip
    for name, made in bodies.items():
        table.body(f"body: {name}", made, LOST)
    whole = {
        "bytes that are no utf-8": lambda c: c.replace(b'"assistant"', b'"assist\xff\xfeant"').replace(
            b"a", b"\xff"
        ),
        "something after it": lambda c: c + b"}",
        "two replies": lambda c: c + c,
        "single quotes": lambda c: c.replace(b'"', b"'"),
        "a trailing comma": lambda c: c[:-1] + b",}",
        "comments": lambda c: b"// reply\n" + c,
        "JSON in a text": lambda c: json.dumps(c.decode()).encode(),
    }
    for name, make in whole.items():
        table.raw(f"body: {name}", lambda c, make=make: answer(make(c)), LOST)
    table.raw("body: blanks around it", lambda c: answer(b" \r\n\t" * 50 + c + b"\n" * 50), READ, runs=1)
    table.raw(
        "body: other content type", lambda c: answer(c, headers=["Content-Type: text/html"]), READ, runs=1
    )


def _odd_json(table):
    table.body("1,000 fields nobody knows", lambda r: r | {f"x{n}": [n] for n in range(1000)}, READ, runs=1)
    table.body(
        "a field nobody knows of 20 MB", lambda r: r | {"x": "y" * (20 << 20)}, READ, runs=1, heavy=True
    )
    for name, values in {"empty lists": b"[],", "lists in lists": b"[[]],", "numbers": b"1.5,"}.items():
        made = b'{"choices":[' + values * ((60 << 20) // len(values)) + b"0]}"
        table.body(f"60 MB of {name}", lambda _, made=made: made, LOST, heavy=True)
    table.body("odd usage", lambda r: r | {"usage": {"prompt_tokens": "x", "total": -1}}, READ, runs=1)
    table.body("no id, no model, no object", _bare, READ, runs=1)
    table.body(
        "ids and dates of other types", lambda r: r | {"id": 7, "created": "x", "model": None}, READ, runs=1
    )


def _bare(reply):
    return {name: value for name, value in reply.items() if name not in ("id", "object", "created", "model")}


def _envelopes(table):
    without = {
        "choices missing": {}, "choices null": None, "choices empty": [], "choices an object": {"0": {}},
        "choices a text": "x", "choices of null": [None], "choices of lists": [[]], "choices of texts": ["x"],
        "choices of nothing": [{}],
    }  # fmt: skip
    for name, choices in without.items():
        made = {"object": "chat.completion"} | ({} if name == "choices missing" else {"choices": choices})
        table.body(name, made, LOST)
    table.body("choices deep", nested({"choices": DEEP}), LOST)
    table.body("a choice deep", nested({"choices": [DEEP]}), LOST)
    table.body("a deep field nobody knows", lambda r: nested(r | {"x": DEEP}), READ, runs=1)
