"""A model server that says another thing than before: one odd answer changes one call, and no run."""

import pytest

from environments.policy.base import CompletionRequest
from environments.trajectory import Message
from tests.adversarial.fault_kinds import Kinds
from tests.adversarial.faulty_server import Plan, faulty
from tests.adversarial.test_fault_kinds import policy_on
from tools.errors import PolicyError


def request(number):
    return CompletionRequest(messages=(Message(role="user", content=f"Note {number}."),), seed=number)


@pytest.mark.parametrize("wire", ["chat", ("vllm", "completions"), ("sglang", "generate")], ids=str)
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
