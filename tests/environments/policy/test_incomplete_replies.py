"""A reply that is not whole, in whichever layer, is a lost connection: the request is sent again."""

import json

import pytest

from environments.policy.inference.model_server import ModelServer
from environments.policy.inference.token_wires import WIRES
from environments.policy.token_policy import TokenPolicy
from tests.adversarial.fault_kinds import Fault
from tests.adversarial.faulty_server import Plan, faulty
from tests.adversarial.hostile_server import OK, answer
from tests.adversarial.test_fault_kinds import REQUEST
from tests.environments.policy.chat_server import RENDERER, chat_policy
from tests.environments.policy.text_server import QUESTION, text_model
from tests.environments.policy.token_server import ALL_WIRES
from tools.errors import PolicyError

WAITS = {"first_wait_s": 0.001, "longest_wait_s": 0.002}
CLOSED = OK + b"Connection: close\r\n\r\n"
_STREAM = b'data: {"choices": [{"index": 0, "delta": {"content": "x"}}]}\n\n'


def _without_choices(content):
    return answer({**json.loads(content), "choices": []})


INCOMPLETE = {
    "status 408": lambda c: answer({"error": {"message": "slow"}}, status=408),
    "status 409": lambda c: answer({"error": {"message": "loading"}}, status=409),
    "status 425": lambda c: answer(b"", status=425),
    "status 204": lambda c: answer(b"", status=204),
    "empty": lambda c: answer(b""),
    "blank": lambda c: answer(b"\n \n"),
    "html": lambda c: answer(b"<html><h1>502 Bad Gateway</h1></html>", headers=["Content-Type: text/html"]),
    "null": lambda c: answer(b"null"),
    "no fields": lambda c: answer(b"{}"),
    "cut, and framed as whole": lambda c: answer(c[: len(c) // 2]),
    "cut, the end is the frame": lambda c: CLOSED + c[: len(c) // 2],
    "one byte short": lambda c: CLOSED + c[:-1],
    "a stream without an end": lambda c: CLOSED + _STREAM,
    "a stream cut within an event": lambda c: CLOSED + _STREAM + _STREAM[:30],
    "a stream of nothing": lambda c: answer(b"data: [DONE]\n\n"),
}
OF_CHOICES = {
    "no choices": _without_choices,
    "choices null": lambda c: answer({**json.loads(c), "choices": None}),
    "the server gave up": lambda c: answer(
        c.replace(b'"stop"', b'"abort"').replace(b'"tool_calls",', b'"abort",')
    ),
    "a stream with an error in it": lambda c: answer(_STREAM + b'data: {"error": {"message": "x"}}\n\n'),
}
"""On wires whose replies have choices."""
NO_CHOICES = (("sglang", "generate"), ("llama.cpp", "completion"))


def _fault(make):
    async def play(exchange):
        await exchange.send(make(exchange.content))

    return Fault(name="", play=play, expected="retried")


def _client(wire, url):
    if wire == "chat":
        return chat_policy(url, tries=3)
    if wire == "judge":
        return text_model(url, tries=3)
    server = ModelServer(base_url=url, api_key="k", tries=3, **WAITS)
    return TokenPolicy(server=server, model="m", renderer=RENDERER, wire=WIRES[wire])


async def _asked(wire, make, tries):
    """What a call gives, or its error, and how often the server was asked."""
    plan = Plan(fault=make and _fault(make), tries=tries, done=wire == "judge")
    async with faulty(lambda *_: plan) as server:
        client = _client(wire, server.url)
        asking = client.answer(QUESTION, seed=3) if wire == "judge" else client.complete(REQUEST)
        try:
            outcome = await asking
        except PolicyError as error:
            outcome = error
        await client.aclose()
    return outcome, sum(call.requests for call in server.calls.values())


@pytest.mark.parametrize("wire", ["chat", "judge", *ALL_WIRES], ids=str)
async def test_an_incomplete_reply_is_asked_for_again_and_one_that_stays_is_a_failure(wire):
    undisturbed, _ = await _asked(wire, None, 0)
    kinds = INCOMPLETE if wire in NO_CHOICES else INCOMPLETE | OF_CHOICES
    wrong = {}
    for name, make in kinds.items():
        once, for_ever = await _asked(wire, make, 1), await _asked(wire, make, 99)
        lost = isinstance(for_ever[0], PolicyError) and "tried 3 times" in str(for_ever[0])
        if once != (undisturbed, 2) or not lost or for_ever[1] != 3:
            wrong[name] = (once, for_ever)
    assert wrong == {}
