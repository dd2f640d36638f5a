"""A policy that hands over what no row, record or trainer can take costs that rollout, and nothing else."""

from dataclasses import replace
from pathlib import Path

import pytest

from environments.policy.scripted import ScriptedPolicy
from environments.record.group_line import decode_group, encode_group
from environments.trajectory import StopReason
from environments.wire.payloads import Shape, pack
from tests.environments.write_file import HELLO, ITEMS, group_from, made
from tools.calls import ToolCall

HOSTILE_SIBLING = 1


class Hostile:
    """Plays the environment's script, and spoils the completions of one sibling of each group."""

    name = "hostile"

    def __init__(self, spoil, vocabulary_size=None):
        self.spoil = spoil
        if vocabulary_size is not None:
            self.vocabulary_size = vocabulary_size

    def plays(self, env):
        self.script = lambda messages, tools, skill: env.scripted_choices(
            item_of(messages), messages, tools, 0.5
        )
        self.renderer = env.renderer
        self.seeds = {replace(HELLO, item_id=item["id"]).seed(0, HOSTILE_SIBLING) for item in ITEMS}
        return env

    async def complete(self, request):
        script = ScriptedPolicy(self.script, skill=0.5, renderer=self.renderer)
        completion = await script.complete(request)
        return self.spoil(completion) if request.seed in self.seeds else completion


def item_of(messages):
    return next(item for item in ITEMS if item["text"] in messages[0].content)


def playing(spoil, vocabulary_size=None, **fields):
    policy = Hostile(spoil, vocabulary_size)
    return policy.plays(made(policy=policy, **fields))


def ids(change):
    return lambda completion: replace(completion, token_ids=change(completion.token_ids))


def prompt(change):
    return lambda completion: replace(completion, prompt_ids=change(completion.prompt_ids))


def first_logprob(value):
    return lambda completion: replace(completion, logprobs=(value, *completion.logprobs[1:]))


def message(**fields):
    return lambda completion: replace(completion, message=replace(completion.message, **fields))


def tool_call(**fields):
    call = ToolCall(**{"id": "1", "name": "terminal", "arguments": "{}"} | fields)
    return message(tool_calls=(call,))


SPOILT = {
    "nothing": lambda completion: None,
    "logprobs of a generator": lambda c: replace(c, logprobs=(each for each in c.logprobs)),
    "a logprob that float32 does not know": first_logprob(-1e39),
    "a logprob above 0": first_logprob(0.01),
    "an id that is a bool": ids(lambda given: (True, *given[1:])),
    "an id beyond 32 bits": ids(lambda given: (2**31, *given[1:])),
    "no ids": lambda c: replace(c, token_ids=(), logprobs=()),
    "more ids than were asked for": lambda c: replace(c, token_ids=(5,) * 1025, logprobs=(-0.5,) * 1025),
    "no prompt": prompt(lambda given: ()),
    "the role of a user": message(role="user"),
    "a content of parts": message(content=[{"type": "text", "text": "a"}]),
    "half a surrogate pair": message(content="\ud800"),
    "a finish_reason that is None": lambda c: replace(c, finish_reason=None),
    "arguments that are no text": tool_call(arguments={"command": "true"}),
    "a call with a status that is none": tool_call(status="fine"),
    "a call with a span beyond its tokens": tool_call(span=(0, 10_000)),
    "what extends a row before there is one": lambda c: replace(c, extends_row=True),
    "a cause of a fork that is no text": lambda c: replace(c, fork=7),
    "sampling that is no mapping": lambda c: replace(c, sampling=[("temperature", 1.0)]),
    "sampling that is not JSON": lambda c: replace(c, sampling={"stop": object()}),
    }  # fmt: skip


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
async def test_the_sibling_fails_as_the_policys_and_the_others_are_credited(spoil):
    credited = await group_from(playing(spoil))
    (failure,) = credited.group.failures
    assert (failure.sibling, failure.stop_reason) == (HOSTILE_SIBLING, StopReason.POLICY_ERROR)
    assert failure.error.startswith("PolicyError: the policy gave ")
    assert [t.sibling for t in credited.group.trajectories] == [0, 2, 3]
    pack(credited, Shape(group_size=4))
    assert decode_group(encode_group(credited), Path("record"), 1) == credited


async def test_ids_are_held_to_the_vocabulary_that_the_policy_names():
    credited = await group_from(playing(ids(lambda given: (5_000, *given[1:])), vocabulary_size=5_000))
    (failure,) = credited.group.failures
    assert "possible: 0 to 4999" in failure.error
