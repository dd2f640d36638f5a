import pytest

from environments.policy.scripted import Choice, ScriptedPolicy, call, say
from tests.environments.policy.token_server import (
    ALL_WIRES,
    RENDERER,
    TERMINAL,
    rollout,
    served,
)

wires = pytest.mark.parametrize("wire", ALL_WIRES, ids="-".join)


def counting_script(messages, tools, skill):
    if messages[-1].role == "tool":
        return [
            Choice(probability=0.5, message=say("3")),
            Choice(probability=0.5, message=say("4", reasoning="3+1")),
        ]
    return [
        Choice(probability=skill, message=call("terminal", {"command": "ls | wc -l"}, content="Look.")),
        Choice(probability=1 - skill, message=call("terminal", '{"command": "ls')),
    ]


@wires
async def test_ids_and_logprobs_are_those_of_the_scripted_policy_in_the_process(wire):
    local = ScriptedPolicy(counting_script, skill=0.6, renderer=RENDERER)
    async with served(wire, counting_script) as remote:
        for seed in range(4):
            there, here = [(await rollout(policy, seed))[0] for policy in (remote, local)]
            for one, other in zip(there, here, strict=True):
                assert (one.token_ids, one.logprobs) == (other.token_ids, other.logprobs)
                assert (one.finish_reason, one.exact) == (other.finish_reason, True)


@wires
async def test_a_row_that_grows_turn_by_turn_is_the_whole_prompt_and_the_last_turn(wire):
    async with served(wire, counting_script) as remote:
        completions, row, messages = await rollout(remote, 1, turns=3)
    assert [each.extends_row for each in completions] == [False, True, True]
    whole = RENDERER.prompt_ids(messages[:-1], (TERMINAL,))
    assert tuple(row.token_ids) == whole + completions[-1].token_ids
