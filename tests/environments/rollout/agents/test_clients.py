"""Programs that were written without us: what they get, and that their turns are those of our own loop."""

import asyncio
import json

import openai
import pytest
from pydantic import BaseModel

from environments.config import ServerConfig
from tests.environments.rollout.agents.recorded import (
    ADD,
    BuiltIn,
    Sums,
    ask,
    played,
    post,
    roll_out,
    rolled_out,
    user,
)
from turnwise import Choice, say

GROUP = {"group_size": 4}


def _result(made):
    given = json.loads(made.function.arguments)
    return {"role": "tool", "tool_call_id": made.id, "content": str(given["a"] + given["b"])}


async def plain(self, item, ctx):
    client, messages = ctx.endpoint.client(), [user(item["task"])]
    while True:
        completion = await client.chat.completions.create(
            model=ctx.endpoint.model, messages=messages, tools=[ADD], temperature=0.2
        )
        message = completion.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return
        messages += map(_result, message.tool_calls)


async def streaming(self, item, ctx):
    client, messages = ctx.endpoint.client(), [user(item["task"])]
    strict = {**ADD, "function": {**ADD["function"], "strict": True}}
    options = {"model": ctx.endpoint.model, "tools": [strict], "stream_options": {"include_usage": True}}
    while True:
        async with client.chat.completions.stream(messages=messages, **options) as stream:
            completion = await stream.get_final_completion()
        assert completion.usage.prompt_tokens > 0
        message = completion.choices[0].message
        calls = [
            each.model_dump(exclude={"function": {"parsed_arguments"}}) for each in message.tool_calls or ()
        ]
        written = {"tool_calls": calls} if calls else {}
        messages.append({"role": "assistant", "content": message.content, **written})
        if not calls:
            return
        messages += map(_result, message.tool_calls)


def synchronous(self, item, ctx):
    client = openai.OpenAI(base_url=ctx.endpoint.base_url, api_key=ctx.endpoint.api_key)
    messages = [user(item["task"])]
    while True:
        completion = client.chat.completions.create(model="gpt-4o", messages=messages, tools=[ADD])
        message = completion.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return
        messages += map(_result, message.tool_calls)


async def raw(self, item, ctx):
    messages = [user([{"type": "text", "text": item["task"]}])]
    while True:
        message = await ask(ctx.endpoint, *messages, tools=[ADD])
        renamed = [{**made, "id": f"mine-{made['id']}", "index": 0} for made in message.get("tool_calls", [])]
        for made in renamed:  # written by a client of its own
            arguments = json.loads(made["function"]["arguments"])
            made["function"] = {"name": "add", "arguments": json.dumps(arguments, indent=1, sort_keys=True)}
        messages.append({"role": "assistant", "content": message["content"] or None, "tool_calls": renamed})
        if not renamed:
            return
        for made in renamed:
            given = json.loads(made["function"]["arguments"])
            result = str(given["a"] + given["b"])
            messages.append({"role": "tool", "tool_call_id": made["id"], "content": result})


async def messages_api(self, item, ctx):
    """Anthropic's API as its clients speak it, the results in the blocks of a user message."""
    tools = [
        {"name": "add", "description": "Add two numbers.", "input_schema": ADD["function"]["parameters"]}
    ]
    history = [user(item["task"])]
    while True:
        body = {"model": "claude", "max_tokens": 500, "messages": history, "tools": tools}
        status, answer, _ = await post(ctx.endpoint, body, "/messages")
        assert status == 200, answer
        uses = [block for block in answer["content"] if block["type"] == "tool_use"]
        assert answer["stop_reason"] == ("tool_use" if uses else "end_turn")
        history.append({"role": "assistant", "content": answer["content"]})
        if not uses:
            return
        results = [
            {
                "type": "tool_result",
                "tool_use_id": each["id"],
                "content": str(each["input"]["a"] + each["input"]["b"]),
            }
            for each in uses
        ]
        history.append({"role": "user", "content": results})


FLAT_ADD = {"type": "function", "strict": None, **ADD["function"]}


async def responses(self, item, ctx):
    """OpenAI's Responses API, its output sent back with the results of its calls."""
    client, items = ctx.endpoint.client(), [user(item["task"])]
    while True:
        fields = {"model": ctx.endpoint.model, "input": items, "tools": [FLAT_ADD], "store": True}
        response = await client.responses.create(**fields)
        assert (response.status, response.store) == ("completed", False)
        if not _answer_items(response, items):
            return


async def streaming_responses(self, item, ctx):
    client, items = ctx.endpoint.client(), [user([{"type": "input_text", "text": item["task"]}])]
    while True:
        fields = {"model": ctx.endpoint.model, "input": items, "tools": [FLAT_ADD]}
        async with client.responses.stream(**fields) as stream:
            events = [event async for event in stream]
            response = await stream.get_final_response()
        assert [event.sequence_number for event in events] == list(range(len(events)))
        written = [event.delta for event in events if event.type == "response.output_text.delta"]
        assert "".join(written) == response.output_text
        if not _answer_items(response, items):
            return


def _answer_items(response, items):
    """Append the output and the results of its calls; return whether there are any."""
    calls = [each for each in response.output if each.type == "function_call"]
    items += [each.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for each in response.output]
    for each in calls:
        given = json.loads(each.arguments)
        output = str(given["a"] + given["b"])
        items.append({"type": "function_call_output", "call_id": each.call_id, "output": output})
    return bool(calls)


PLAYS = [plain, streaming, synchronous, raw, messages_api, responses, streaming_responses]


@pytest.mark.parametrize("play", PLAYS)
def test_an_agent_that_does_what_our_loop_does_has_its_rows_turns_and_credit(play):
    ours = asyncio.run(roll_out(BuiltIn, **GROUP))
    theirs = asyncio.run(roll_out(played(Sums, play), **GROUP))
    assert theirs.group.failures == ()
    for one, other in zip(ours.group.trajectories, theirs.group.trajectories, strict=True):
        assert one.rows == other.rows
        assert one.messages == other.messages
        assert [turn.span for turn in one.turns] == [turn.span for turn in other.turns]
        assert (one.tools, one.rewards, other.exact) == (other.tools, other.rewards, True)
    assert ours.advantages == theirs.advantages


def test_what_a_client_wrote_anew_is_counted_and_the_row_goes_on():
    (trajectory,) = rolled_out(played(Sums, raw))
    assert len(trajectory.rows) == 1
    assert trajectory.agent.counts["normalised"] == 3


def test_ignored_fields_are_counted():
    (trajectory,) = rolled_out(played(Sums, plain))
    assert trajectory.agent.counts == {"ignored temperature": 4}


class Sum(BaseModel):
    total: int


def test_openai_parses_an_answer_that_it_asked_for_by_a_schema():
    async def play(self, item, ctx):
        asked = {"model": "m", "messages": [user("x")], "response_format": Sum}
        (choice,) = (await ctx.endpoint.client().chat.completions.parse(**asked)).choices
        assert choice.message.parsed == Sum(total=3)

    def answers(self, item, messages, tools, skill):
        return [Choice(probability=1.0, message=say('{"total": 3}'))]

    (trajectory,) = rolled_out(played(Sums, play, scripted_choices=answers))
    assert '"required":["total"]' in trajectory.prompt[-1].content


def test_openai_gets_the_call_that_it_requires_when_it_is_enforced():
    async def play(self, item, ctx):
        asked = {"model": "m", "messages": [user("x")], "tools": [ADD], "tool_choice": "required"}
        (choice,) = (await ctx.endpoint.client().chat.completions.create(**asked)).choices
        assert [made.function.name for made in choice.message.tool_calls] == ["add"]

    def answers(self, item, messages, tools, skill):
        return [Choice(probability=1.0, message=say("no"))]

    servers = [ServerConfig(constraints="enforce")]
    (trajectory,) = rolled_out(played(Sums, play, scripted_choices=answers), servers=servers)
    assert trajectory.turns[0].trained is False
