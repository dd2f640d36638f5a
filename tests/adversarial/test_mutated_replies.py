"""Each field of each wire's reply is missing, or something else: the call is answered or lost."""

import copy

import pytest

from environments.policy.inference.model_server import ModelServer
from environments.trajectory import Completion
from tests.adversarial.fault_kinds import DEEP, nested
from tests.adversarial.faulty_server import Call, Plan, reply_to
from tests.adversarial.sampled_replies import ANSWERS, call_text, sampled
from tests.adversarial.test_fault_kinds import REQUEST, outcome_of, policy_on
from tools.errors import ContextOverflow, PolicyError

ODD = [
    None, True, False, 0, -1, 7, 2**31, 2**64, -(10**400), 0.5, -0.5, 1e308, "", "x", "7", "\ud800", "stop",
    "x" * 1000, [], [None], [[]], ["x"], [7], [{}], {}, {"x": 7}, {"type": {}}, {"type": "text", "text": {}},
    {"message": "x", "code": 500}, DEEP, [DEEP], {"x": DEEP}, {"type": DEEP}, {"code": DEEP}, {"text": DEEP},
]  # fmt: skip
MISSING = object()


def paths(value, path=()):
    """Where something stands in a reply; of a list only the first two."""
    if path:
        yield path
    items = (
        value.items()
        if isinstance(value, dict)
        else list(enumerate(value))[:2]
        if isinstance(value, list)
        else ()
    )
    for step, inner in items:
        yield from paths(inner, (*path, step))


def mutations(reply):
    """The reply with something else in one place, as JSON."""
    for path in paths(reply):
        for odd in (*ODD, MISSING):
            changed = copy.deepcopy(reply)
            *steps, last = path
            inner = changed
            for step in steps:
                inner = inner[step]
            if odd is MISSING:
                del inner[last]
            else:
                inner[last] = odd
            yield (
                f"{'.'.join(map(str, path))} = {'nothing' if odd is MISSING else repr(odd)[:60]}",
                nested(changed),
            )


async def problems(monkeypatch, policy, contents):
    """What leaves a policy that neither the loop nor people can take."""

    async def ask(self, path, body, read, *, at_root=False):
        return await read(content)

    monkeypatch.setattr(ModelServer, "ask", ask)
    found = []
    for name, content in contents:  # noqa: B007
        outcome = await outcome_of(policy)
        if not isinstance(outcome, Completion | PolicyError | ContextOverflow):
            found.append(f"{name}: {outcome!r:.200}")
        elif isinstance(outcome, Exception) and not (str(outcome).isprintable() and len(str(outcome)) < 1000):
            found.append(f"{name}: not a short line: {str(outcome)[:200]!r}")
    return found


def chat_reply():
    asked = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    reply = reply_to(asked, Call(plan=Plan(), token="token-1"))
    more = {"reasoning": "x", "reasoning_content": "x", "refusal": None, "function_call": None}
    reply["choices"][0]["message"] |= more
    return reply


async def test_any_field_of_a_chat_reply_may_be_anything(monkeypatch):
    policy = policy_on("chat", "http://127.0.0.1:9/v1")
    assert await problems(monkeypatch, policy, mutations(chat_reply())) == []


@pytest.mark.parametrize("wire", sorted(ANSWERS), ids="-".join)
async def test_any_field_of_a_reply_with_token_ids_may_be_anything(wire, monkeypatch):
    policy = policy_on(wire, "http://127.0.0.1:9/v1")
    prompt = policy.renderer.prompt_ids(REQUEST.messages, REQUEST.tools)
    reply = ANSWERS[wire](sampled(call_text("token-1"), prompt))
    assert await problems(monkeypatch, policy, mutations(reply)) == []
