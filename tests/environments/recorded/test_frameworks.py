"""Frameworks that stop at texts, want JSON or force a tool, unchanged."""

import importlib
import json
import os

import pytest
from pydantic import BaseModel

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig, ServerConfig
from environments.policy.rendering.chatml import ChatMLRenderer
from environments.policy.scripted import Choice, call, say
from environments.turn_level_reward import TurnLevelRewardMixin
from tests.environments.test_row_contract import check_masks, contexts

if not os.environ.get("TURNWISE_REQUIRE_FRAMEWORKS"):
    pytest.importorskip("smolagents", reason="needs frameworks: see requirements/frameworks.in")
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
smolagents, dspy = importlib.import_module("smolagents"), importlib.import_module("dspy")
langchain_openai = importlib.import_module("langchain_openai")
agents = importlib.import_module("langchain.agents")
strategies = importlib.import_module("langchain.agents.structured_output")
pydantic_ai = importlib.import_module("pydantic_ai")
openai_model = importlib.import_module("pydantic_ai.models.openai")
openai_provider = importlib.import_module("pydantic_ai.providers.openai")
RENDERER = ChatMLRenderer.embedded()
pytestmark = pytest.mark.filterwarnings("ignore")


class City(BaseModel):
    city: str
    people: int


ROME = json.dumps({"city": "Rome", "people": 2_750_000})


def halve(number: int) -> int:
    """Half of a number.

    Args:
        number: An even number.
    """
    return number // 2


async def played(play, *steps, servers=()):
    """The only rollout of an agent whose model takes these steps, by their order."""

    def scripted_choices(self, item, messages, tools, skill):
        asked.append(messages)
        return [Choice(probability=1.0, message=steps[min(len(asked), len(steps)) - 1])]

    class Plays(TurnLevelRewardMixin, AgentEnv):
        name = "plays"
        sandbox = "none"

        def load_items(self):
            return [{"id": "one"}]

        def compute_outcome(self, item, trajectory, ctx):
            return 1.0

    asked, kept = [], []

    def kept_play(self, item, ctx):
        kept.append(play(ctx.endpoint))

    cls = type("Steps", (Plays,), {"play": kept_play, "scripted_choices": scripted_choices})
    config = AgentEnvConfig(group_size=1, min_group_size=1, rollout_timeout_s=200)
    async with cls(config, servers) as env:
        group = await env.rollout_group(env.tasks()[0], 1)
        check_masks(env, group)
    (trajectory,) = (*group.trajectories, *group.failures)
    assert trajectory.stop_reason == "completed", trajectory
    for turn, seen in zip(trajectory.turns, contexts(trajectory), strict=True):
        row = trajectory.rows[turn.span.row].token_ids
        assert RENDERER.prompt_ids(seen, trajectory.tools) == row[: turn.span.start]
    return trajectory, kept[0]


def _smol_model(endpoint):
    return smolagents.OpenAIModel(
        model_id=endpoint.model, api_base=endpoint.base_url, api_key=endpoint.api_key
    )


async def test_smolagents_code_agent_stops_after_its_code_and_writes_its_history_anew():
    def play(endpoint):
        return smolagents.CodeAgent(
            tools=[], model=_smol_model(endpoint), max_steps=5, verbosity_level=0
        ).run("Go.")

    steps = [say(f"Thought: {n}.\n<code>\nx = {n}\nprint(x)\n</code>\nObservation: 7") for n in range(2)]
    trajectory, answer = await played(play, *steps, say("<code>\nfinal_answer(x)\n</code>"))
    assert answer == 1
    # It adds "Calling tools: ..." to what it received.
    assert [turn.fork for turn in trajectory.turns] == [None, "agent", "agent"]
    assert {turn.message.content.rpartition("\n")[2] for turn in trajectory.turns} == {"</code>"}


async def test_smolagents_tool_calling_agent_is_asked_for_calls_and_writes_its_history_anew():
    def play(endpoint):
        tool = smolagents.tool(halve)
        agent = smolagents.ToolCallingAgent(tools=[tool], model=_smol_model(endpoint), verbosity_level=0)
        return agent.run("Halve 12.")

    steps = call("halve", {"number": 12}), call("final_answer", {"answer": "6"})
    trajectory, answer = await played(play, *steps)
    assert (answer, trajectory.agent.counts["asked"]) == ("6", 2)
    assert [turn.fork for turn in trajectory.turns] == [None, "agent"]
    assert "call a tool in each message" in trajectory.prompt[-1].content


async def test_dspy_predicts_in_json():
    def play(endpoint):
        lm = dspy.LM("openai/gpt-4o-mini", api_base=endpoint.base_url, api_key=endpoint.api_key, cache=False)
        with dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
            return dspy.Predict("country -> city: str, people: int")(country="Italy").city

    trajectory, city = await played(play, say(ROME))
    assert city == "Rome"
    assert (len(trajectory.turns), trajectory.agent.counts["asked"]) == (1, 1)


async def test_dspy_react_calls_its_tools_in_json():
    def play(endpoint):
        lm = dspy.LM("openai/gpt-4o-mini", api_base=endpoint.base_url, api_key=endpoint.api_key, cache=False)
        with dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
            return dspy.ReAct("number: int -> half: int", tools=[halve])(number=12).half

    def step(tool, **arguments):
        return say(json.dumps({"next_thought": "on", "next_tool_name": tool, "next_tool_args": arguments}))

    last = say(json.dumps({"reasoning": "so", "half": 6}))
    trajectory, half = await played(play, step("halve", number=12), step("finish"), last)
    assert (half, len(trajectory.turns), trajectory.agent.counts["asked"]) == (6, 3, 3)


async def test_a_response_format_of_langgraph_leaves_the_row_whole_over_its_tools():
    def play(endpoint):
        model = langchain_openai.ChatOpenAI(
            model=endpoint.model, base_url=endpoint.base_url, api_key=endpoint.api_key
        )
        format_ = strategies.ProviderStrategy(City)
        agent = agents.create_agent(model, tools=[halve], response_format=format_)
        return agent.invoke({"messages": [{"role": "user", "content": "Rome?"}]})["structured_response"]

    trajectory, city = await played(play, call("halve", {"number": 12}), say(ROME))
    assert city.city == "Rome"
    assert [turn.fork for turn in trajectory.turns] == [None, None]
    assert [turn.trained for turn in trajectory.turns] == [True, True]
    assert "each message that calls no tool is one JSON object" in trajectory.prompt[-1].content


@pytest.mark.parametrize(
    ("output", "answer"),
    [("ToolOutput", call("final_result", json.loads(ROME))), ("NativeOutput", say(ROME))],
)
async def test_an_output_type_of_pydantic_ai(output, answer):
    def play(endpoint):
        provider = openai_provider.OpenAIProvider(base_url=endpoint.base_url, api_key=endpoint.api_key)
        model = openai_model.OpenAIChatModel(endpoint.model, provider=provider)
        agent = pydantic_ai.Agent(model, output_type=getattr(pydantic_ai, output)(City), tools=[halve])
        return agent.run_sync("Rome?").output

    trajectory, city = await played(play, call("halve", {"number": 12}), answer)
    assert city == City(city="Rome", people=2_750_000)
    assert [turn.fork for turn in trajectory.turns] == [None, None]
    assert trajectory.agent.counts["asked"] == 2


async def test_an_answer_that_is_not_what_was_asked_for_is_the_agents_to_judge():
    def play(endpoint):
        provider = openai_provider.OpenAIProvider(base_url=endpoint.base_url, api_key=endpoint.api_key)
        model = openai_model.OpenAIChatModel(endpoint.model, provider=provider)
        return pydantic_ai.Agent(model, output_type=City, retries=2).run_sync("Rome?").output

    trajectory, city = await played(play, say("I would rather not."), call("final_result", json.loads(ROME)))
    assert (city.city, [turn.trained for turn in trajectory.turns]) == ("Rome", [True, True])


async def test_enforced_output_types_are_kept_by_the_model_and_not_trained():
    def play(endpoint):
        provider = openai_provider.OpenAIProvider(base_url=endpoint.base_url, api_key=endpoint.api_key)
        model = openai_model.OpenAIChatModel(endpoint.model, provider=provider)
        return pydantic_ai.Agent(model, output_type=City).run_sync("Rome?").output

    servers = [ServerConfig(constraints="enforce")]
    trajectory, city = await played(play, say("I would rather not."), servers=servers)
    assert (type(city), [turn.trained for turn in trajectory.turns]) == (City, [False])
