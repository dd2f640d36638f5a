"""What comes of each fault of a model server: read, lost, asked again or too long, over real HTTP."""

import pytest

from environments.inference import http_client
from environments.policy.base import CompletionRequest
from environments.rollout.completion_check import checked_completion
from environments.rollout.failures import failure_of
from tests.adversarial.body_faults import SECRET
from tests.adversarial.fault_kinds import LOST, OVERFLOW, READ, RETRIED
from tests.adversarial.faulted_env import Faulted
from tests.adversarial.faulty_server import FAULTS, Plan, faulty
from tests.environments.policy.chat_server import chat_policy
from environments.trajectory import Message
from tools.errors import ContextOverflow, PolicyError

ROOM = 16_384
REQUEST = CompletionRequest(
    messages=(Message(role="user", content="Note it."),),
    tools=Faulted.tools[0].specs,
    seed=3,
    max_tokens=64,
    max_row_tokens=ROOM,
)


async def outcome_of(policy):
    """What the loop makes of a call: the completion, or the error that ends the rollout."""
    try:
        made = checked_completion(await policy.complete(REQUEST), max_tokens=64, vocabulary_size=None)
        if len(made.prompt_ids) + len(made.token_ids) > ROOM:
            return ContextOverflow("too long a row")
    except (PolicyError, ContextOverflow) as error:
        return error
    return made


@pytest.fixture
def asked(monkeypatch):
    """Asks one call of a server that plays a fault for so many requests."""

    async def ask(fault, tries):
        async with faulty(lambda _: Plan(fault=fault, tries=tries)) as server:
            policy = chat_policy(server.url, request_timeout_s=0.25 if "ever" in fault.name or "stall" in fault.name else 5.0, tries=3)
            outcome = await outcome_of(policy)
            await policy.aclose()
        return outcome, [call.requests for call in server.calls.values()]

    return ask


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
async def test_what_comes_of_a_fault(fault, asked):
    outcome, requests = await asked(fault, 1)
    if fault.expected in (READ, RETRIED):
        assert not isinstance(outcome, Exception), outcome
        assert requests == [1 if fault.expected == READ else 2]
        assert fault.exact in (None, outcome.exact)
    elif fault.expected == OVERFLOW:
        assert isinstance(outcome, ContextOverflow), outcome
        assert requests == [1]
    else:
        assert isinstance(outcome, PolicyError), outcome
        assert requests == [1]
        in_one_line(outcome)


@pytest.mark.parametrize("fault", [each for each in FAULTS.values() if each.expected == RETRIED], ids=lambda f: f.name)
async def test_a_fault_that_stays_costs_the_call_after_its_tries(fault, asked):
    outcome, requests = await asked(fault, 99)
    assert isinstance(outcome, PolicyError)
    assert requests == [3]
    in_one_line(outcome)


def in_one_line(error):
    failure = failure_of(error, sibling=0, turns=0)
    assert failure.error.isprintable()
    assert len(failure.error) < 1000
    assert SECRET not in failure.error + failure.traceback


def test_there_are_as_many_kinds_as_are_claimed():
    assert len(FAULTS) >= 165
