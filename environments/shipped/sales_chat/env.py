"""`SalesChatEnv`: sell in a text chat; an upvote is a turn's reward, the sale the outcome."""

from collections.abc import Mapping, Sequence
from typing import Any

from environments.base_env import AgentEnv
from environments.policy.scripted import Choice, mostly, say
from environments.rewards.reward_context import RolloutContext
from environments.shipped.sales_chat.customer import MOODS, PATIENCE, PRODUCTS, TOPICS, Customer, move_of
from environments.trajectory import Message, Trajectory, Turn
from environments.turn_level_reward import TurnLevelRewardMixin
from tools.calls import ToolSpec

Item = Mapping[str, Any]
"""`product`, a name."""
_CHAT = {
    "comfort": "It is soft and light, and a comfort to use.",
    "durability": "It is sturdy, and lasts for years.",
    "looks": "Its design is elegant, in three colours.",
}


class SalesChatEnv(TurnLevelRewardMixin, AgentEnv):
    """A chat with a customer who is cold, warm or hot, and who votes when they feel like it."""

    name = "sales_chat"
    sandbox = "none"
    required_fields = ("product",)
    system_prompt = (
        f"You sell in a chat. The customer answers {PATIENCE} messages at most. Talk about the one thing that"
        " matters to them, comfort, durability or looks, and they may warm to the product. Ask them to buy or"
        " order it, and they decide at once. Say goodbye, and they leave."
    )

    async def load_items(self) -> Sequence[Item]:
        if self.config.dataset_name or self.config.dataset_path:
            return await super().load_items()
        return [{"id": product, "product": product} for product in PRODUCTS][: self.config.max_items]

    def format_prompt(self, item: Item, ctx: RolloutContext) -> str:
        return f"Hello, I am interested in the {item['product']}. {_customer(ctx).opening}"

    async def respond(self, item: Item, turn: Turn, ctx: RolloutContext) -> str:
        customer = _customer(ctx)
        if customer.end is not None:
            ctx.end(customer.end)
        return customer.says

    def state_key(self, item: Item, turn: Turn | None, ctx: RolloutContext) -> str:
        customer = _customer(ctx)
        return f"{customer.messages} {MOODS[customer.mood]} {customer.taste} {customer.end or ''}"

    async def score_turn(self, item: Item, turn: Turn, ctx: RolloutContext) -> float | None:
        """The vote; silence is no vote of 0."""
        return _customer(ctx).vote

    async def compute_outcome(self, item: Item, trajectory: Trajectory, ctx: RolloutContext) -> float:
        return float(trajectory.end_reason == "sold")

    def scripted_choices(
        self, item: Item, messages: Sequence[Message], tools: Sequence[ToolSpec], skill: float
    ) -> Sequence[Choice]:
        """Mostly talk of what the customer wants and a pitch at the end, else a mistake.

        Mistakes are talk of something else, a pitch too early or none at all, a goodbye, and saying nothing.
        """
        topics = [move_of(message.content).topic for message in messages if message.role == "user"]
        wanted = next(filter(None, topics), "comfort")
        is_last = sum(message.role == "assistant" for message in messages) == PATIENCE - 1
        pitch = say("Would you like to buy it?")
        chat = {topic: say(text) for topic, text in _CHAT.items()}
        others = [chat[topic] for topic in sorted(TOPICS) if topic != wanted]
        right, early = (pitch, chat[wanted]) if is_last else (chat[wanted], pitch)
        return mostly(0.2 + 0.79 * skill, [right], [early, *others, say("Goodbye."), say("")])


def _customer(ctx: RolloutContext) -> Customer:
    """The customer by now, whom seeds and messages make: a record has both, so it can be rescored."""
    said = [message.content for message in ctx.messages if message.role == "assistant"]
    return Customer.met(said, seed=ctx.seed, group_seed=ctx.group_seed)
