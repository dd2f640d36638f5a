"""Agents of others that call OpenAI's Responses API by default: their turns are those of our own loop."""

import importlib
import os

import pytest

from tests.environments.rollout.agents.recorded import BuiltIn, Sums, played, roll_out

if not os.environ.get("TURNWISE_REQUIRE_FRAMEWORKS"):
    for name in ("agents", "pydantic_ai"):
        pytest.importorskip(name, reason="needs frameworks: see requirements/frameworks.in")
agents = importlib.import_module("agents")
pydantic_ai = importlib.import_module("pydantic_ai")
models = importlib.import_module("pydantic_ai.models")
providers = importlib.import_module("pydantic_ai.providers.openai")
agents.set_tracing_disabled(True)


def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


def adder(endpoint):
    """An agent of openai-agents, and its settings."""
    at = agents.OpenAIProvider(openai_client=endpoint.client())
    agent = agents.Agent(name="adder", tools=[agents.function_tool(add)], model=endpoint.model)
    return agent, agents.RunConfig(model_provider=at)


async def openai_agents(self, item, ctx):
    agent, config = adder(ctx.endpoint)
    await agents.Runner.run(agent, item["task"], run_config=config)


async def openai_agents_streaming(self, item, ctx):
    agent, config = adder(ctx.endpoint)
    running = agents.Runner.run_streamed(agent, item["task"], run_config=config)
    async for _ in running.stream_events():
        pass


async def pydantic_ai_default(self, item, ctx):
    to = ctx.endpoint
    at = providers.OpenAIProvider(base_url=to.base_url, api_key=to.api_key)
    model = models.infer_model(f"openai:{to.model}", provider_factory=lambda name: at)
    await pydantic_ai.Agent(model, tools=[add]).run(item["task"])


@pytest.mark.parametrize("play", [openai_agents, openai_agents_streaming, pydantic_ai_default])
async def test_its_rows_rewards_and_credit_are_those_of_our_loop(play):
    ours = await roll_out(BuiltIn, group_size=4)
    theirs = await roll_out(played(Sums, play), group_size=4)
    assert theirs.group.failures == ()
    for one, other in zip(ours.group.trajectories, theirs.group.trajectories, strict=True):
        assert len(other.rows) == 1
        assert [turn.span.end - turn.span.start for turn in one.turns] == [
            turn.span.end - turn.span.start for turn in other.turns
        ]
        assert (one.rewards, other.exact) == (other.rewards, True)
    assert ours.advantages == theirs.advantages
