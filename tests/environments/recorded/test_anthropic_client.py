"""The Anthropic client at the endpoint: its tool loops, streamed or not, are turns with their results."""

import importlib
import json
import os

import pytest

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig
from environments.policy.scripted import Choice, call, say
from environments.turn_level_reward import TurnLevelRewardMixin

if not os.environ.get("TURNWISE_REQUIRE_AGENTS"):
    pytest.importorskip("anthropic", reason="needs anthropic: see requirements/agents.in")
anthropic = importlib.import_module("anthropic")

STEPS = (
    call("halve", {"number": 12}, content="First."),
    call("halve", {"number": 5}),
    say("2.5 and an error"),
)


@anthropic.beta_async_tool
async def halve(number: int) -> str:
    """Half of an even number."""
    if number % 2:
        raise ValueError("odd")
    return str(number // 2)


async def runner(client, model, messages, **options):
    """The client's own loop, which would keep its history at the server."""
    fields = {
        "model": model,
        "max_tokens": 200,
        "messages": messages,
        "tools": [halve],
        "system": "Be brief.",
    }
    async for reply in client.beta.messages.tool_runner(**fields, **options):
        yield await reply.get_final_message() if options.get("stream") else reply


async def streaming_runner(client, model, messages):
    async for reply in runner(client, model, messages, stream=True):
        yield reply


class Halves(TurnLevelRewardMixin, AgentEnv):
    name = "halves"
    sandbox = "none"
    loop = staticmethod(runner)

    def load_items(self):
        return [{"id": "one"}]

    async def play(self, item, ctx):
        to = ctx.endpoint
        replies = ctx.notes["replies"] = []
        async with anthropic.AsyncAnthropic(base_url=to.anthropic_base_url, api_key=to.api_key) as client:
            async for reply in self.loop(client, to.model, [{"role": "user", "content": "12 and 5"}]):
                replies.append(reply)

    def score_turn(self, item, turn, ctx):
        return float(any("odd" not in result.content for result in turn.tool_results))

    def compute_outcome(self, item, trajectory, ctx):
        ends = [reply.stop_reason for reply in ctx.notes["replies"]]
        return {end: float(ends.count(end)) for end in ends}

    def scripted_choices(self, item, messages, tools, skill):
        said = sum(message.role == "assistant" for message in messages)
        return [Choice(probability=1.0, message=STEPS[said])]


async def played(loop, **settings):
    cls = type("Played", (Halves,), {"loop": staticmethod(loop)})
    async with cls(AgentEnvConfig(group_size=1, min_group_size=1, **settings)) as env:
        group = await env.rollout_group(env.tasks()[0], 1)
    (trajectory,) = (*group.trajectories, *group.failures)
    return trajectory


@pytest.mark.parametrize("loop", [runner, streaming_runner])
async def test_a_tool_loop_is_turns_with_their_results(loop):
    trajectory = await played(loop)
    assert trajectory.stop_reason == "completed"
    assert [(message.role, message.content) for message in trajectory.prompt] == [
        ("system", "Be brief."),
        ("user", "12 and 5"),
    ]
    messages = [turn.message for turn in trajectory.turns]
    assert [message.content for message in messages] == ["First.", "", "2.5 and an error"]
    calls = [json.loads(each.arguments) for message in messages for each in message.tool_calls]
    assert calls == [{"number": 12}, {"number": 5}]
    first, second, last = [[result.content for result in turn.tool_results] for turn in trajectory.turns]
    assert (first, len(second), last) == (["6"], 1, [])
    assert "odd" in second[0]
    assert trajectory.rewards.turns == (1.0, 0.0, 0.0)
    assert trajectory.rewards.outcome_parts == {"tool_use": 2.0, "end_turn": 1.0}
    assert (trajectory.exact, len(trajectory.rows)) == (True, 1)


async def test_a_rollout_that_is_over_is_an_error_that_the_client_does_not_try_again():
    met = []

    async def stopped(*fields):
        try:
            async for reply in runner(*fields):
                yield reply
        except anthropic.BadRequestError as error:
            met.append(error.message)
            raise

    trajectory = await played(stopped, max_turns=2)
    assert (trajectory.stop_reason, len(trajectory.turns)) == ("max_turns", 2)
    (message,) = met
    assert "this rollout is over: its turns are used up" in message
