import pytest

from environments.policy.base import CompletionRequest
from environments.policy.scripted import Choice, ScriptedPolicy, call, say
from environments.trajectory import Message
from tests.environments.policy.token_server import (
    ALL_WIRES,
    RENDERER,
    SYSTEM,
    TERMINAL,
    USER,
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
            completions, _ = await rollout(remote, seed)
            messages = (SYSTEM, USER)
            for index, completion in enumerate(completions):
                same = await local.complete(
                    CompletionRequest(messages=messages, tools=(TERMINAL,), seed=seed)
                )
                assert (completion.token_ids, completion.logprobs) == (same.token_ids, same.logprobs)
                assert completion.finish_reason == same.finish_reason
                messages = (*messages, completion.message)
                messages += tuple(
                    Message(role="tool", content=f"3\n{'<|im_start|>' * seed}", tool_call_id=each.id)
                    for each in completion.message.tool_calls
                )


@wires
async def test_a_row_goes_on_from_what_was_sampled_and_equals_the_whole_prompt(wire):
    async with served(wire, counting_script) as remote:
        completions, row = await rollout(remote, 1, turns=3)
    assert [each.extends_row for each in completions] == [False, True, True]
    assert {each.fork for each in completions} == {None}
