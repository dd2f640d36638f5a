"""What a request demands of its completion: asked in the prompt, enforced while sampling, or refused."""

import json
from contextlib import asynccontextmanager

import pytest

from environments.config import ServerConfig
from environments.policy.base import Constraint
from environments.policy.mock_server import MockSettings, mock_app
from environments.policy.rendering.chatml import EMBEDDED_TOKENIZER_DIR, ChatMLRenderer
from environments.rollout.agents.conversation import write_demand
from tests.environments.rollout.agents.recorded import (
    ADD,
    Sums,
    Talk,
    ask,
    played,
    post,
    roll_out,
    rolled_out,
    system,
    user,
)
from tests.environments.rollout.agents.test_threads import PacedPolicy
from tests.environments.test_row_contract import check_masks, contexts
from tests.equipment.running_server import running_server
from turnwise import AgentEnvConfig, Choice, say

RENDERER = ChatMLRenderer.embedded()
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Rome"]}},
    "required": ["city"],
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}
NAMED = {"type": "function", "function": {"name": "add"}}
ENFORCED = [ServerConfig(constraints="enforce")]


def _demands(trajectory):
    """What each turn's prompt says that it demands."""
    return [
        [line for each in seen for line in each.content.split("\n") if line.startswith("From here on")]
        for seen in contexts(trajectory)
    ]


async def _talk(endpoint, *demands):
    """A conversation whose requests make these demands."""
    history = [system("s"), user("x")]
    for fields in demands:
        history += [await ask(endpoint, *history, **fields), user("on")]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"response_format": {"type": "json_object"}}, "one JSON object without any other text."),
        ({"response_format": FORMAT}, "matches this schema:"),
        ({"tools": [ADD], "response_format": FORMAT}, "each message that calls no tool is"),
        ({"tools": [ADD], "tool_choice": "required"}, "call a tool in each message."),
        ({"tools": [ADD], "tool_choice": NAMED}, "call the tool add in each message."),
        ({"tools": [ADD], "parallel_tool_calls": False}, "call one tool at most in a message."),
    ],
)
def test_a_demand_is_asked_for_at_the_end_of_the_prompt_and_the_turn_is_trained(fields, said):
    async def play(self, item, ctx):
        await _talk(ctx.endpoint, fields)

    (trajectory,) = rolled_out(played(Talk, play))
    ((demand,),) = _demands(trajectory)
    assert said in demand
    assert trajectory.prompt[-1].content.startswith(f"x\n\n{demand}")
    assert (trajectory.turns[0].trained, trajectory.agent.counts) == (True, {"asked": 1})


def test_the_messages_api_makes_the_same_demands():
    async def play(self, item, ctx):
        tool = {"name": "add", "input_schema": {}}
        for fields in (
            {"tool_choice": {"type": "any"}},
            {"tool_choice": {"type": "tool", "name": "add"}},
            {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
            {"output_format": {"type": "json_schema", "schema": SCHEMA}},
            {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        ):
            body = {"max_tokens": 9, "messages": [user(json.dumps(fields))], "tools": [tool], **fields}
            status, _, _ = await post(ctx.endpoint, body, "/messages")
            assert status == 200

    (trajectory,) = rolled_out(played(Talk, play))
    asked = [demand.removeprefix("From here on, ")[:30] for (demand,) in _demands(trajectory)]
    assert asked == [
        "call a tool in each message.",
        "call the tool add in each mess",
        "call one tool at most in a mes",
        "each message that calls no too",
        "each message that calls no too",
    ]


def test_a_demand_that_stays_is_said_once_and_one_that_changes_leaves_the_row_whole():
    async def play(self, item, ctx):
        json_only = {"response_format": {"type": "json_object"}}
        await _talk(ctx.endpoint, json_only, json_only, {"response_format": FORMAT}, {}, {})

    (trajectory,) = rolled_out(played(Talk, play))
    assert [len(each) for each in _demands(trajectory)] == [1, 1, 2, 3, 3]
    assert _demands(trajectory)[-1][-1].endswith("no longer hold.")
    assert [turn.fork for turn in trajectory.turns] == [None] * 5
    for turn, seen in zip(trajectory.turns, contexts(trajectory), strict=True):
        assert RENDERER.prompt_ids(seen, ()) == trajectory.rows[0].token_ids[: turn.span.start]
    assert [reply.content for reply in trajectory.turns[1].replies] == ["on"]


def test_after_a_fork_that_drops_it_a_demand_is_said_again():
    async def play(self, item, ctx):
        asked = {"response_format": {"type": "json_object"}}
        first = await ask(ctx.endpoint, user("x"))
        second = await ask(ctx.endpoint, user("x"), first, user("y"), **asked)
        await ask(ctx.endpoint, user("x"), first, user("y"), second, user("z"), **asked)
        await ask(ctx.endpoint, user("x"), first, user("w"), **asked)

    (trajectory,) = rolled_out(played(Talk, play))
    assert [turn.fork for turn in trajectory.turns] == [None, None, None, "agent"]
    assert [len(each) for each in _demands(trajectory)] == [0, 1, 1, 1]


def test_after_a_fork_that_drops_its_withdrawal_a_demand_is_withdrawn_again():
    async def play(self, item, ctx):
        first = await ask(ctx.endpoint, user("x"), response_format={"type": "json_object"})
        await ask(ctx.endpoint, user("x"), first, user("y"))
        await ask(ctx.endpoint, user("x"), first, user("z"))

    (trajectory,) = rolled_out(played(Talk, play))
    assert trajectory.turns[-1].fork == "agent"
    assert [demands[-1].endswith("no longer hold.") for demands in _demands(trajectory)] == [
        False,
        True,
        True,
    ]


async def test_a_demand_after_a_completion_that_was_given_up_leaves_the_prompt_of_that_turn_as_it_was():
    policy, json_only = PacedPolicy(), {"type": "json_object"}
    demand = write_demand(Constraint(fields=(), schema={"type": "object"}), has_tools=False)
    policy.may_end[f"x\n\n{demand}"].set()

    async def play(self, item, ctx):
        await policy.abandon(ctx.endpoint, "x")
        policy.may_end["x"].set()
        await ask(ctx.endpoint, user("x"), response_format=json_only)

    (trajectory,) = (await roll_out(played(Talk, play), policy=policy)).group.trajectories
    assert [turn.kind for turn in trajectory.turns] == ["undelivered", "act"]
    for row, seen in zip(trajectory.rows, contexts(trajectory), strict=True):
        ids = RENDERER.prompt_ids(seen, ())
        assert ids == row.token_ids[: len(ids)]
    assert [len(each) for each in _demands(trajectory)] == [0, 1]


async def test_another_model_refuses_demands_with_the_name_of_their_field():
    got = []

    async def play(self, item, ctx):
        await ask(ctx.endpoint, user("x"))
        for fields in ({"tools": [ADD]}, {"response_format": FORMAT}):
            got.append((await post(ctx.endpoint, {"model": "grader", "messages": [user("x")], **fields}))[1])

    attributes = {"other_models": {"grader": "judge"}, "scripted_judge": lambda self, item, messages: "A"}
    await roll_out(played(Talk, play, **attributes))
    assert [answer["error"]["param"] for answer in got] == ["tools", "response_format"]
    assert all("'grader' answers with free text alone" in answer["error"]["message"] for answer in got)


async def test_an_enforced_turn_is_marked_and_not_trained_and_its_reward_counts_for_earlier_turns():
    class Plays(Talk):
        def score_turn(self, item, turn, ctx):
            return float("Rome" in turn.message.content and "BBBBB" in str(ctx.messages))

        async def play(self, item, ctx):
            await _talk(ctx.endpoint, {}, {"response_format": FORMAT})

    async with Plays(AgentEnvConfig(group_size=8, min_group_size=1), ENFORCED) as env:
        group = await env.run_group(env.tasks()[0])
        check_masks(env, group.group)
    for trajectory, advantages in zip(group.group.trajectories, group.advantages, strict=True):
        free, enforced = trajectory.turns
        assert (free.trained, enforced.trained) == (True, False)
        assert enforced.message.content == '{"city": "Rome"}'
        assert enforced.sampling["constraint"]["schema"] == SCHEMA
        assert trajectory.agent.counts == {"enforced": 1}
        assert (advantages[0] != 0, advantages[1]) == (True, 0)


@asynccontextmanager
async def _server(kind, server_type):
    def script(messages, tools, skill):
        return [Choice(probability=0.5, message=say("no")), Choice(probability=0.5, message=say("never"))]

    app = mock_app(lambda _: script, skill=1.0, renderer=RENDERER, settings=MockSettings(kind=kind))
    async with running_server(app) as url:
        server = ServerConfig(
            base_url=url, model_name="scripted", server_type=server_type, family="chatml",
            constraints="enforce",
        )  # fmt: skip
        yield {"servers": [server], "tokenizer_name": str(EMBEDDED_TOKENIZER_DIR)}


@pytest.mark.parametrize(
    ("kind", "server_type"),
    [
        ("vllm", "vllm"),
        ("vllm", "vllm_generate"),
        ("sglang", "sglang"),
        ("sglang", "sglang_chat"),
        ("llama.cpp", "llama.cpp"),
        ("vllm", "chat"),
        ("plain", "chat"),
    ],
)
async def test_a_server_enforces_a_schema(kind, server_type):
    async def play(self, item, ctx):
        await _talk(ctx.endpoint, {"response_format": FORMAT}, {"response_format": {"type": "json_object"}})

    async with _server(kind, server_type) as where:
        (trajectory,) = (await roll_out(played(Talk, play), **where)).group.trajectories
    assert [turn.message.content for turn in trajectory.turns] == ['{"city": "Rome"}', "{}"]


@pytest.mark.parametrize("choice", ["required", NAMED])
async def test_a_server_that_is_asked_by_messages_enforces_a_tool(choice):
    async def play(self, item, ctx):
        await _talk(ctx.endpoint, {"tools": [ADD], "tool_choice": choice})

    async with _server("vllm", "chat") as where:
        (trajectory,) = (await roll_out(played(Sums, play), **where)).group.trajectories
    assert [call.name for call in trajectory.turns[0].message.tool_calls] == ["add"]
    assert trajectory.turns[0].trained is False


async def test_what_a_server_cannot_enforce_is_refused_with_the_way_out():
    got = []

    async def play(self, item, ctx):
        body = {"messages": [user("x")], "tools": [ADD], "tool_choice": "required"}
        got.append(await post(ctx.endpoint, body))
        await ask(ctx.endpoint, user("x"))

    async with _server("vllm", "vllm") as where:
        credited = await roll_out(played(Talk, play), **where)
    assert len(credited.group.trajectories) == 1
    ((status, answer, _),) = got
    assert (status, answer["error"]["param"]) == (400, "tool_choice")
    assert "--openai.server_type chat" in answer["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"response_format": FORMAT}, "response_format"),
        ({"tools": [ADD], "tool_choice": NAMED}, "tool_choice"),
    ],
)
async def test_refuse_answers_with_a_400_that_names_the_field(fields, named):
    got = []

    async def play(self, item, ctx):
        got.append(await post(ctx.endpoint, {"messages": [user("x")], **fields}))
        await ask(ctx.endpoint, user("x"), parallel_tool_calls=False)

    await roll_out(played(Talk, play), servers=[ServerConfig(constraints="refuse")])
    ((status, answer, _),) = got
    assert (status, answer["error"]["param"]) == (400, named)


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "required"},
        {"tools": [ADD], "tool_choice": {"type": "function", "function": {"name": "other"}}},
        {"tools": [ADD], "tool_choice": 7},
        {"response_format": {"type": "xml"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "no schema"}}},
    ],
)
async def test_a_demand_that_means_nothing_is_a_400(fields):
    got = []

    async def play(self, item, ctx):
        got.append(await post(ctx.endpoint, {"messages": [user("x")], **fields}))
        await ask(ctx.endpoint, user("x"))

    await roll_out(played(Talk, play))
    ((status, answer, _),) = got
    assert (status, answer["error"]["param"] in fields) == (400, True)
