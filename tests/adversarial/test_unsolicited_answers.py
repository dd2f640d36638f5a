"""A server or a proxy that speaks unasked on a kept connection: nobody takes that for an answer."""

import asyncio

import pytest

from tests.adversarial.hostile_server import OK, answer, hostile
from tests.environments.policy.chat_server import REQUEST, chat_policy
from tests.environments.policy.chat_server import answer as reply

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
