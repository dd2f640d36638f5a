"""Which answers are too much to parse: none that a model has sampled."""

import orjson

from environments.inference.http_client import bomb_in
from tests.tables import cases

TOKENS = 131_072
CODE = "if (a[0] == {1, 2}[b]) { f([1], {}) }\n" * (TOKENS // 12)


def reply(entry, text=CODE):
    choice = {"message": {"content": text}, "token_ids": [17] * TOKENS}
    return orjson.dumps({"choices": [{**choice, "logprobs": {"content": [entry] * TOKENS}}]})


ENTRY = {"token": " {[", "logprob": -0.25, "bytes": [32, 123, 91], "top_logprobs": []}
TOP = {name: ENTRY[name] for name in ("token", "logprob", "bytes")}


@cases(
    "answer",
    [reply(ENTRY), reply({**ENTRY, "top_logprobs": [TOP]}), orjson.dumps({"content": CODE * 8})],
    ids=["logprobs", "top logprobs", "code"],
)
def test_a_long_answer_is_none(answer):
    assert bomb_in(answer) is None


@cases("piece", [b"[],", b"{},", b'{"a":[]},'], ids=["lists", "objects", "nested"])
def test_many_containers_in_little_are(piece):
    assert "lists and objects" in bomb_in(b"[" + piece * 500_000 + b"0]")


def test_many_values_are():
    assert "values" in bomb_in(b"[" + b"0," * 5_000_000 + b"0]")
