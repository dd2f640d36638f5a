"""JSON from outside is read within bounds that nothing a model has sampled comes near."""

import sys

import orjson
import pytest

from tests.tables import cases
from tools.json_input import JsonError, check_weight, read_exact_json, read_json

TOKENS = 131_072
CODE = "if (a[0] == {1, 2}[b]) { f([1], {}) }\n" * (TOKENS // 12)
ENTRY = {"token": " {[", "logprob": -0.25, "bytes": [32, 123, 91], "top_logprobs": []}
TOP = {name: ENTRY[name] for name in ("token", "logprob", "bytes")}


def reply(entry, text=CODE):
    choice = {"message": {"content": text}, "token_ids": [17] * TOKENS}
    return orjson.dumps({"choices": [{**choice, "logprobs": {"content": [entry] * TOKENS}}]})


@cases(
    "answer",
    [reply(ENTRY), reply({**ENTRY, "top_logprobs": [TOP]}), orjson.dumps({"content": CODE * 80})],
    ids=["logprobs", "top logprobs", "code"],
)
def test_a_long_answer_is_read(answer):
    check_weight(answer)


BOMBS = {
    "lists": b"[" + b"[]," * 3_000_000 + b"0]",
    "objects": b"[" + b'{"a":[]},' * 1_100_000 + b"0]",
    "numbers": b"[" + b"0," * 11_000_000 + b"0]",
    "texts": b"[" + b'"",' * 11_000_000 + b"0]",
    "names": b"{" + b",".join(b'"%d":0' % number for number in range(2_100_000)) + b"}",
    "64 MB": b"[" * (64 << 20),
}


@cases("content", BOMBS.values(), ids=list(BOMBS))
def test_what_would_stop_the_event_loop_is_refused(content):
    with pytest.raises(JsonError, match="too many values"):
        read_json(content)


@cases("deep", [b"[" * 201 + b"]" * 201, b'{"a":' * 201 + b"0" + b"}" * 201], ids=["lists", "objects"])
@cases("read", [read_json, lambda text: read_exact_json(text.decode())], ids=["fast", "exact"])
def test_what_nests_too_deeply_for_code_that_looks_through_it_is_refused(read, deep):
    with pytest.raises(JsonError, match="nested too deeply"):
        read(deep)
    assert read(deep[1:-1] if deep[:1] == b"[" else deep[5:-1])


@cases(
    ("text", "problem"),
    [
        ('{"a": 1, "a": 2}', "the name 'a' stands twice"),
        ("[NaN]", "NaN is not a JSON number"),
        ("[1e999]", "1e999 is too large"),
        ("1" * 5000, "digits"),
        ("[1,\n2", "at column 2"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_exact_json_is_refused_in_a_line(text, problem):
    with pytest.raises(JsonError, match=problem) as caught:
        read_exact_json(text)
    assert "\n" not in str(caught.value)


def test_exact_json_keeps_what_is_written():
    assert read_exact_json("[18446744073709551617, 1.0]") == [2**64 + 1, 1.0]


def test_reading_calls_nothing_for_each_number():
    calls = []
    sys.setprofile(lambda frame, event, argument: calls.append(event))
    try:
        read_json(b"[" + b"1," * 5000 + b"1]")
    finally:
        sys.setprofile(None)
    assert len(calls) < 100
