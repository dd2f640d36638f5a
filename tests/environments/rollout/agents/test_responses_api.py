"""OpenAI's Responses API at the endpoint: its tools, reasoning and limits, and the counts of prompts."""

import aiohttp

from tests.environments.rollout.agents.recorded import ADD, Sums, Talk, played, post, roll_out, user
from turnwise import Choice, say

FLAT = {"type": "function", **ADD["function"]}


async def respond(endpoint, items, **fields):
    status, answer, _ = await post(endpoint, {"model": "m", "input": items, **fields}, "/responses")
    assert status == 200, answer
    return answer


async def trajectory_of(base, play, **attributes):
    credited = await roll_out(played(base, play, **attributes))
    assert credited.group.failures == ()
    return credited.group.trajectories[0]


async def test_a_function_of_a_namespace_is_offered_under_its_name_and_its_call_names_the_namespace():
    got = []

    async def play(self, item, ctx):
        tools = [{"type": "namespace", "name": "maths", "tools": [FLAT, FLAT]}, FLAT]
        got.extend((await respond(ctx.endpoint, "Add.", tools=tools))["output"])

    trajectory = await trajectory_of(Sums, play)
    assert [each.name for each in trajectory.tools] == ["add"]
    assert (got[-1]["name"], got[-1]["namespace"]) == ("add", "maths")
    assert trajectory.agent.counts == {"ignored tools.add": 2}


async def test_a_function_may_have_no_parameters():
    async def play(self, item, ctx):
        await respond(ctx.endpoint, "Add.", tools=[{**FLAT, "parameters": None}])

    assert [each.parameters for each in (await trajectory_of(Sums, play)).tools] == [{}]


async def test_tools_of_the_server_are_left_out_and_counted_and_refused_where_they_must_be_called():
    search = {"type": "tool_search", "parameters": {}}  # as Codex offers it
    server = [{"type": "web_search"}, {"type": "custom", "name": "patch"}, search]
    got = []

    async def play(self, item, ctx):
        await respond(ctx.endpoint, "Add.", tools=[*server, FLAT])
        body = {"model": "m", "input": "x", "tools": server, "tool_choice": {"type": "web_search"}}
        got.append((await post(ctx.endpoint, body, "/responses"))[:2])

    trajectory = await trajectory_of(Sums, play)
    assert [each.name for each in trajectory.tools] == ["add"]
    ((status, answer),) = got
    assert (status, answer["error"]["param"]) == (400, "tool_choice")
    assert {
        "ignored tools.web_search": 1,
        "ignored tools.patch": 1,
    }.items() <= trajectory.agent.counts.items()


async def test_instructions_and_developer_messages_are_system_messages():
    async def play(self, item, ctx):
        items = [{"type": "message", "role": "developer", "content": "Be brief."}, user("x")]
        await respond(ctx.endpoint, items, instructions="You talk.")

    trajectory = await trajectory_of(Talk, play)
    assert [(each.role, each.content) for each in trajectory.prompt] == [
        ("system", "You talk."),
        ("system", "Be brief."),
        ("user", "x"),
    ]


class Thinking(Talk):
    def scripted_choices(self, item, messages, tools, skill):
        return [Choice(probability=1.0, message=say("A", reasoning="Hm."))]


async def test_reasoning_is_returned_with_an_id_of_its_turn_and_that_of_other_servers_is_counted():
    got = []

    async def play(self, item, ctx):
        output = (await respond(ctx.endpoint, "x"))["output"]
        await respond(ctx.endpoint, [user("x"), *output, user("y")])
        foreign = {**output[0], "encrypted_content": "gAAAA"}
        await respond(ctx.endpoint, [user("x"), foreign, *output[1:], user("z")])
        got.append(output[0])

    trajectory = await trajectory_of(Thinking, play)
    assert got[0]["summary"] == [{"type": "summary_text", "text": "Hm."}]
    assert [turn.fork for turn in trajectory.turns] == [None, None, "agent"]
    assert trajectory.agent.counts == {"ignored encrypted_content": 1}


async def test_a_response_that_is_cut_is_incomplete():
    got = []

    async def play(self, item, ctx):
        got.append(await respond(ctx.endpoint, "x", max_output_tokens=1))

    await trajectory_of(
        Talk, play, scripted_choices=lambda *_: [Choice(probability=1.0, message=say("A B C"))]
    )
    assert (got[0]["status"], got[0]["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})


async def test_the_last_event_of_a_response_that_is_cut_says_so():
    got = []

    async def play(self, item, ctx):
        body = {"model": "m", "input": "x", "max_output_tokens": 1, "stream": True}
        key = {"Authorization": f"Bearer {ctx.endpoint.api_key}"}
        url = f"{ctx.endpoint.base_url}/responses"
        async with aiohttp.ClientSession() as session, session.post(url, json=body, headers=key) as answer:
            got.extend(line for line in (await answer.text()).split("\n") if line.startswith("event: "))

    await trajectory_of(Talk, play)
    assert got[-1] == "event: response.incomplete"


async def test_prompts_are_counted_without_a_turn():
    got = {}

    async def play(self, item, ctx):
        body = {"model": "m", "input": "Add.", "tools": [FLAT]}
        _, got["responses"], _ = await post(ctx.endpoint, body, "/responses/input_tokens")
        tool = {"name": "add", "description": FLAT["description"], "input_schema": FLAT["parameters"]}
        body = {"model": "m", "messages": [user("Add.")], "tools": [tool]}
        _, got["messages"], _ = await post(ctx.endpoint, body, "/messages/count_tokens")
        got["turn"] = (await respond(ctx.endpoint, "Add.", tools=[FLAT]))["usage"]["input_tokens"]

    trajectory = await trajectory_of(Sums, play)
    assert got["messages"] == {"input_tokens": got["turn"]}
    assert got["responses"] == {"object": "response.input_tokens", "input_tokens": got["turn"]}
    assert len(trajectory.turns) == 1
