"""What comes of each fault of a model server: read, lost, asked again or too long, over real HTTP."""

import asyncio

import pytest

from environments.policy.base import CompletionRequest
from environments.policy.inference.model_server import ModelServer
from environments.policy.inference.token_wires import WIRES
from environments.policy.token_policy import TokenPolicy
from environments.rollout.boundary import failure_of
from environments.rollout.rows import check_completion
from environments.trajectory import Completion, Message
from tests.adversarial.body_faults import SECRET
from tests.adversarial.fault_kinds import LOST, OVERFLOW, READ, RETRIED
from tests.adversarial.faulty_server import FAULTS, Plan, faulty
from tests.adversarial.message_faults import POISON
from tests.environments.policy.chat_server import RENDERER, chat_policy
from tests.environments.policy.token_server import ALL_WIRES
from tools.errors import ContextOverflow, PolicyError
from tools.registry import Toolset, tool

ROOM = 16_384


def noting(noted):
    """A tool that keeps what it was called with."""

    @tool
    async def note(token: str) -> str:
        """Note a token.

        Args:
            token: to be noted.
        """
        noted.append(token)
        return f"noted {token}"

    return Toolset("notes", (note,))


REQUEST = CompletionRequest(
    messages=(Message(role="user", content="Note it."),),
    tools=noting([]).specs,
    seed=3,
    max_tokens=1024,
    max_row_tokens=ROOM,
)


async def outcome_of(policy):
    """What the loop makes of a call: the completion, or the error that ends the rollout."""
    try:
        made = check_completion(
            await policy.complete(REQUEST), REQUEST, vocabulary_size=getattr(policy, "vocabulary_size", None)
        )
        if len(made.prompt_ids) + len(made.token_ids) > ROOM:
            return ContextOverflow("too long a row")
    except Exception as error:  # noqa: BLE001  # whatever leaves a policy is looked at
        return error
    return made


async def played(fault, wire, tries):
    """The outcome of a call to a server that plays a fault for so many requests, and the requests.

    The tool calls of a completion that was spoilt are run.
    """
    async with faulty(lambda *_: Plan(fault=fault, tries=tries)) as server:
        policy = policy_on(wire, server.url, request_timeout_s=5.0 if fault.stalls else 30.0, tries=2)
        outcome = await outcome_of(policy)
        await policy.aclose()
    if fault.expected == READ and isinstance(outcome, Completion):
        tools = noting(noted := [])
        for each in outcome.message.tool_calls:
            await tools.execute(each, None, timeout_s=5, max_output_chars=100)
        if len(noted) != fault.runs or any(token.startswith(POISON) for token in noted):
            outcome = AssertionError(f"tools ran with {noted}")
    return outcome, sum(call.requests for call in server.calls.values())


def policy_on(wire, url, **settings):
    if wire == "chat":
        return chat_policy(url, **settings)
    waits = {"first_wait_s": 0.001, "longest_wait_s": 0.002}
    server = ModelServer(base_url=url, api_key="k", **waits, **settings)
    return TokenPolicy(server=server, model="m", renderer=RENDERER, wire=WIRES[wire])


async def problems(faults, *, wire, tries, problem_of):
    """What is wrong with the outcomes of faults, each played on a server of its own."""
    at_once = asyncio.Semaphore(12)

    async def problem(fault):
        async with at_once:
            outcome, requests = await played(fault, wire, tries)
        found = problem_of(fault, outcome, requests)
        return (
            None if found is None else f"{fault.name}: expected {fault.expected}: {found}: {outcome!r:.300}"
        )

    found = [await problem(fault) for fault in faults if fault.heavy]
    # After those that keep everybody waiting.
    found += await asyncio.gather(*(problem(fault) for fault in faults if not fault.heavy))
    return "\n".join(each for each in found if each is not None)


def problem_once(fault, outcome, requests):
    """What is wrong with what came of a fault that was played for one request."""
    classes = {LOST: PolicyError, OVERFLOW: ContextOverflow}
    if not isinstance(outcome, classes.get(fault.expected, Completion)):
        return "another class"
    if requests != (2 if fault.expected == RETRIED else 1):
        return f"{requests} requests"
    if not isinstance(outcome, Completion):
        return shown(outcome)
    return None if fault.exact in (None, outcome.exact) else "exactness"


def problem_for_ever(fault, outcome, requests):
    if not isinstance(outcome, PolicyError):
        return "another class"
    return f"{requests} requests" if requests != 2 else shown(outcome)


def shown(error):
    """What is wrong with how people and records see an error."""
    failure = failure_of(error, sibling=0, turns=0)
    if not failure.error.isprintable() or len(failure.error) > 1000:
        return "not a short line"
    return "a credential" if SECRET in failure.error + failure.traceback else None


async def test_what_comes_of_each_fault_of_a_chat_server():
    faults = [fault for fault in FAULTS.values() if fault.wire != "tokens"]
    found = await problems(faults, wire="chat", tries=1, problem_of=problem_once)
    assert not found, found


@pytest.mark.parametrize("wire", ALL_WIRES, ids="-".join)
async def test_what_comes_of_each_fault_of_a_server_of_tokens(wire):
    faults = [fault for fault in FAULTS.values() if fault.wire == "tokens" and wire not in fault.but_on]
    found = await problems(faults, wire=wire, tries=1, problem_of=problem_once)
    assert not found, found


async def test_a_fault_that_stays_costs_the_call_after_its_tries():
    staying = [fault for fault in FAULTS.values() if fault.expected == RETRIED]
    found = await problems(staying, wire="chat", tries=99, problem_of=problem_for_ever)
    assert not found, found
