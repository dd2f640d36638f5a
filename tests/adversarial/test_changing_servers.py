"""A model server that speaks unasked, says anything at all, or becomes another one: one call is lost."""

import asyncio

import pytest

from environments.policy.base import CompletionRequest
from environments.policy.inference import http_client
from environments.trajectory import Message
from tests.adversarial.fault_kinds import Kinds
from tests.adversarial.faulty_server import Plan, faulty
from tests.adversarial.hostile_server import OK, answer, hostile
from tests.adversarial.test_fault_kinds import policy_on
from tests.adversarial.test_hostile_api import ANSWERS
from tests.environments.policy.chat_server import REQUEST, chat_policy
from tests.environments.policy.chat_server import answer as reply
from tests.tables import cases
from tools.errors import ConfigError, PolicyError


def request(number):
    return CompletionRequest(messages=(Message(role="user", content=f"Note {number}."),), seed=number)


@pytest.mark.parametrize(
    "wire",
    ["chat", ("vllm", "completions"), ("sglang", "generate"), ("llama.cpp", "completion")],
    ids=str,
)
async def test_a_server_that_becomes_another_one_costs_calls_and_gives_no_tokens(wire):
    """It comes back as one that knows messages alone, and says something to everything."""
    said = {"choices": [{"message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}]}
    table = Kinds()
    table.body("another", said, "lost")
    calls = iter(range(100))
    async with faulty(
        lambda *_: Plan() if next(calls) < 2 else Plan(fault=table.faults[0], tries=99)
    ) as server:
        policy = policy_on(wire, server.url, tries=1)
        assert [(await policy.complete(request(number))).exact for number in range(2)] == [True, True]
        for number in range(2, 5):
            with pytest.raises(PolicyError):
                await policy.complete(request(number))
        await policy.aclose()


STRAY = {
    "an answer": answer(reply(message={"content": "somebody else's"})),
    "the beginning of one": OK,
    "a request timeout": answer(b"", status=408, headers=["Connection: close"]),
    "a byte": b"x",
}


@pytest.mark.parametrize("stray", STRAY.values(), ids=STRAY)
async def test_what_comes_between_two_requests_is_no_answer(stray):
    spoken = asyncio.Event()

    async def speak(writer):
        writer.write(answer(reply(message={"content": f"{len(server.asked)}"})))
        await writer.drain()
        await asyncio.sleep(0.01)  # until the client has read that
        writer.write(stray)
        await writer.drain()
        await asyncio.sleep(0.01)
        spoken.set()
        await asyncio.sleep(0.1)

    async with hostile({"*": speak}) as server:
        policy = chat_policy(f"{server.url}/v1", tries=2)
        for _ in range(3):
            assert (await policy.complete(REQUEST)).message.content == f"{len(server.asked)}"
            await spoken.wait()
            spoken.clear()
        await policy.aclose()


@cases("made", ANSWERS.values(), ids=ANSWERS)
async def test_the_look_at_a_server_before_a_run_takes_any_answer(made, monkeypatch):
    monkeypatch.setattr(http_client, "_MAX_ANSWER_BYTES", 1 << 20)
    async with hostile({"*": made}) as server:
        policy = chat_policy(f"{server.url}/v1", tries=1, request_timeout_s=20.0)
        with pytest.raises(ConfigError) as caught:
            await policy.check()
        await policy.aclose()
    assert len(str(caught.value)) < 1000


async def test_a_redirection_is_not_followed_and_names_where_to_ask():
    made = answer(b"", status=308, headers=["Location: http://user:secret@127.0.0.1:9/v2?token=t0ken"])
    async with hostile({"*": made}) as server:
        policy = chat_policy(f"{server.url}/v1", tries=1)
        with pytest.raises(PolicyError, match=r"it leads to http://127\.0\.0\.1:9/v2; ask there"):
            await policy.complete(REQUEST)
        await policy.aclose()
