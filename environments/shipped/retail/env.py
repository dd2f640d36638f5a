"""`RetailEnv`: customer service over a database, judged by the database at the end."""

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
from environments.shipped.retail.conduct import (
    REQUIRED_FIELDS,
    Conduct,
    Item,
    refuse_impossible,
    required_end_state,
)
from environments.shipped.retail.script import customer_script, persona, retail_script
from environments.shipped.retail.shop import HANDED_OVER, Shop, end_state, load_rows, open_shop, states
from environments.trajectory import Message, Trajectory, Turn
from environments.turn_level_reward import TurnLevelRewardMixin
from tools.calls import ToolSpec
from tools.sandbox.base import Sandbox


class RetailConfig(AgentEnvConfig):
    max_turns: int = Field(default=30, ge=1, le=10_000, description="Model calls per rollout.")


class RetailEnv(TurnLevelRewardMixin, AgentEnv):
    """A shop's customer service: 1 if the customer is content, the database right and nothing left out."""

    name = "retail"
    tools = (Shop,)
    sandbox = "none"
    system_prompt = files("environments.shipped.retail").joinpath("policy.md").read_text()
    required_fields = REQUIRED_FIELDS
    env_config_cls = RetailConfig
    user = SimulatedUser(max_replies=15)

    async def load_items(self) -> Sequence[Item]:
        if self.config.has_dataset:
            items = await super().load_items()
            refuse_impossible(items)
            return items
        return load_rows("tasks")

    def prepare(self, item: Item, sandbox: Sandbox) -> Generator[Shop]:
        """Open a shop for this rollout; a `def` runs on the thread of the tools, which SQLite requires."""
        with closing(open_shop()) as connection:
            yield Shop(connection)

    def format_prompt(self, item: Item, ctx: RolloutContext) -> str:
        ctx.notes["conduct"] = Conduct(item=item)
        return item["opening"]

    async def respond(self, item: Item, turn: Turn, ctx: RolloutContext) -> str | None:
        """Reply as the customer, who sees the agent's text but no tool calls."""
        return None if turn.tool_results else await self.user.reply(ctx, persona=persona(item))

    async def score_turn(self, item: Item, turn: Turn, ctx: RolloutContext) -> Reward | None:
        shop: Shop = ctx.state
        conduct = cast(Conduct, ctx.notes["conduct"])
        events, shop.events = shop.events, []
        own = 1 + len(turn.tool_results) + len(turn.replies)
        return conduct.score(events, ctx.messages[:-own])

    def compute_outcome(self, item: Item, trajectory: Trajectory, ctx: RolloutContext) -> Reward:  # pyright: ignore[reportIncompatibleMethodOverride]  # any hook may be `def`
        """Return 1 for a proper end, the right database, all look-ups and all answers, else 0."""
        spoken = [message.content for message in ctx.messages if message.role == "assistant"]
        answered = all(any(states(text, amount) for text in spoken) for amount in item["answers"])
        facts = {
            "settled": float(trajectory.end_reason in (SimulatedUser.SATISFIED, HANDED_OVER)),
            "database": float(end_state(ctx.state.connection) == required_end_state(item)),
            "looked_up": float(cast(Conduct, ctx.notes["conduct"]).is_informed),
            "answered": float(answered),
        }
        ctx.metrics.update(facts)
        return float(all(facts.values()))

    def scripted_user(self, item: Item, messages: Sequence[Message]) -> str:
        return customer_script(item, messages)

    def scripted_choices(
        self, item: Item, messages: Sequence[Message], tools: Sequence[ToolSpec], skill: float
    ) -> Sequence[Choice]:
        return retail_script(item, messages, tools, skill)
