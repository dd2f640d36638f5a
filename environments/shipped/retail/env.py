"""`RetailEnv`: customer service over a database; the database at the end decides whether it was right."""

from collections.abc import Generator, Sequence
from contextlib import closing
from importlib.resources import files
from typing import cast

from pydantic import Field

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig
from environments.policy.scripted import Choice
from environments.rewards.reward_context import Reward, RolloutContext
from environments.rollout.simulated_user import SimulatedUser
from environments.shipped.retail.conduct import Conduct
from environments.shipped.retail.script import retail_script
from environments.shipped.retail.shop import HANDED_OVER, Shop, end_state, open_shop, states
from environments.shipped.retail.shop_tasks import (
    REQUIRED_FIELDS,
    Item,
    customer_says,
    embedded_tasks,
    expected_end_state,
    persona,
    refuse_impossible,
)
from environments.trajectory import Message, Trajectory, Turn
from environments.turn_level_reward import TurnLevelRewardMixin
from tools.calls import ToolSpec
from tools.sandbox.base import Sandbox


class RetailConfig(AgentEnvConfig):
    max_turns: int = Field(default=30, ge=1, le=10_000, description="Model calls per rollout.")


class RetailEnv(TurnLevelRewardMixin, AgentEnv):
    """A shop's customer service: 1 when the customer is content, the database right and nothing left out."""

    name = "retail"
    tools = (Shop,)
    sandbox = "none"
    system_prompt = files("environments.shipped.retail").joinpath("policy.md").read_text()
    required_fields = REQUIRED_FIELDS
    env_config_cls = RetailConfig
    user = SimulatedUser(max_replies=15)

    async def load_items(self) -> Sequence[Item]:
        if self.config.dataset_name or self.config.dataset_path:
            items = await super().load_items()
            refuse_impossible(items)
            return items
        return embedded_tasks()[: self.config.max_items]

    def prepare(self, item: Item, sandbox: Sandbox) -> Generator[Shop]:
        """A shop of this rollout's own; `def`, so that all that is `def` uses it on one thread."""
        with closing(open_shop()) as connection:
            yield Shop(connection)

    def format_prompt(self, item: Item, ctx: RolloutContext) -> str:
        ctx.notes["conduct"] = Conduct(item=item)
        return item["opening"]

    async def respond(self, item: Item, turn: Turn, ctx: RolloutContext) -> str | None:
        """The customer answers the agent's text; calls of tools are hidden from them."""
        return None if turn.tool_results else await self.user.reply(ctx, persona=persona(item))

    async def score_turn(self, item: Item, turn: Turn, ctx: RolloutContext) -> Reward | None:
        """What the turn's tools did, held against the task and the policy."""
        shop: Shop = ctx.state
        conduct = cast(Conduct, ctx.notes["conduct"])
        events, shop.events = shop.events, []
        own = 1 + len(turn.tool_results) + len(turn.replies)
        return conduct.after(events, ctx.messages[:-own])

    def compute_outcome(self, item: Item, trajectory: Trajectory, ctx: RolloutContext) -> Reward:  # pyright: ignore[reportIncompatibleMethodOverride]  # any hook may be `def`
        """1 for an end, the right database, what had to be looked up, and every answer asked for; else 0."""
        spoken = [message.content for message in ctx.messages if message.role == "assistant"]
        facts = {
            "settled": float(trajectory.end_reason in (SimulatedUser.SATISFIED, HANDED_OVER)),
            "database": float(end_state(ctx.state.connection) == expected_end_state(item)),
            "looked_up": float(cast(Conduct, ctx.notes["conduct"]).is_informed),
            "answered": float(
                all(any(states(text, amount) for text in spoken) for amount in item["answers"])
            ),
        }
        ctx.metrics.update(facts)
        return float(all(facts.values()))

    def scripted_user(self, item: Item, messages: Sequence[Message]) -> str:
        return customer_says(item, messages)

    def scripted_choices(
        self, item: Item, messages: Sequence[Message], tools: Sequence[ToolSpec], skill: float
    ) -> Sequence[Choice]:
        return retail_script(item, messages, tools, skill)
