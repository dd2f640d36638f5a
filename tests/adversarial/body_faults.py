"""Faults of status codes and bodies: errors in every dress, and JSON that is not a completion."""

from tests.adversarial.fault_kinds import DEEP, LOST, READ, RETRIED, Kinds, nested
from tests.adversarial.hostile_server import answer

SECRET = "s3cr3t-t0ken"
"""Stands in what hostile servers answer, as a credential in a URL: nobody may see it."""
_LEAK = f"see http://user:{SECRET}@127.0.0.1:9/?api_key={SECRET}\n\x1b[2J\u202eand more"


def kinds():
    table = Kinds()
    _statuses(table)
    _error_bodies(table)
    _no_json(table)
    _odd_json(table)
    return table.faults


def _error(message=_LEAK, **fields):
    return {"error": {"message": message, **fields}}


def _statuses(table):
    table.body("status 422", _error(), LOST, status=422)
    for status in (409, 425, 529):
        table.body(f"status {status}", _error(), RETRIED, status=status)
    table.raw("status 204", b"HTTP/1.1 204 X\r\n\r\n", RETRIED)
    table.raw("status 206, half of it", lambda c: answer(c[: len(c) // 2], status=206), RETRIED)
    table.raw("status 999", lambda c: answer(c, status=999), LOST)
    elsewhere = f"Location: http://user:{SECRET}@127.0.0.1:9/v1?key={SECRET}"
    table.body("status 307 elsewhere", b"", LOST, status=307, headers=[elsewhere])
    later = ["Retry-After: " + "9" * 10_000]
    table.body("429, retry after 10,000 digits", _error(), RETRIED, status=429, headers=later, stalls=True)


def _error_bodies(table):
    bodies = {
        "empty": b"",
        "a message that is an object": _error({"a": 1}), "no utf-8": b'{"error": "\xff\xfe"}',
        "deep": b'{"error":' * 50_000, "a lone surrogate": b'{"error": {"message": "\\ud800"}}',
    }  # fmt: skip
    for name, made in bodies.items():
        table.body(f"500 and {name}", made, RETRIED, status=500)
    for status, expected in ((200, RETRIED), (400, LOST), (500, RETRIED)):
        for field in ("code", "message"):
            made = nested({"error": {field: DEEP}})
            table.body(f"{status} and an error with a deep {field}", made, expected, status=status)
    table.body("400 and 20 MB", lambda _: _error("x" * (20 << 20)), LOST, status=400, heavy=True)
    table.body("400 and a text of nothing but URLs", _error("http://" * 100_000), LOST, status=400)


def _no_json(table):
    bodies = {
        "nothing": b"", "null": b"null",
        "deep lists": b"[" * 200_000, "a cut object": b'{"choices": [{"mess',
        "a long number": b'{"choices": ' + b"9" * 100_000,
        "an event stream without an end": b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n',
    }  # fmt: skip
    for name, made in bodies.items():
        table.body(f"body: {name}", made, RETRIED)
    whole = {
        "bytes that are no utf-8": lambda c: c.replace(b"a", b"\xff"),
        "something after it": lambda c: c + b"}",
    }
    for name, make in whole.items():
        table.raw(f"body: {name}", lambda c, make=make: answer(make(c)), RETRIED)
    table.raw("body: blanks around it", lambda c: answer(b" \r\n\t" * 50 + c + b"\n" * 50), READ, runs=1)


def _odd_json(table):
    table.body("1,000 fields nobody knows", lambda r: r | {f"x{n}": [n] for n in range(1000)}, READ, runs=1)
    large = "y" * (20 << 20)
    table.body("a field nobody knows of 20 MB", lambda r: r | {"x": large}, READ, runs=1, heavy=True)
    lists = b'{"choices":[' + b"[]," * (20 << 20) + b"0]}"
    table.body("60 MB of empty lists", lambda _: lists, RETRIED, heavy=True)
    table.body("odd usage", lambda r: r | {"usage": {"prompt_tokens": "x", "total": -1}}, LOST)
    choices = {"null": None, "empty": [], "an object": {"0": {}}, "of null": [None],
               "of nothing": [{}]}  # fmt: skip
    for name, value in choices.items():
        expected = RETRIED if name in ("null", "empty", "of nothing") else LOST
        table.body(f"choices {name}", {"object": "chat.completion", "choices": value}, expected)
    table.body("choices missing", {"object": "chat.completion"}, RETRIED)
    table.body("choices deep", nested({"choices": DEEP}), RETRIED)
