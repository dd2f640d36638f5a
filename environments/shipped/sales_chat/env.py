"""`SalesChatEnv`: sell in a text chat; an upvote is a turn's reward, the sale the outcome.

It is the market of docs/credit.md.
"""

import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Literal

from environments.base_env import AgentEnv
from environments.policy.scripted import Choice, mostly, say
from environments.rewards.reward_context import RolloutContext
from environments.trajectory import Message, Trajectory, Turn
from environments.turn_level_reward import TurnLevelRewardMixin
from tools.calls import ToolSpec

Item = Mapping[str, Any]
PRODUCTS: tuple[str, ...] = (
    "armchair", "backpack", "bicycle", "coat", "desk lamp", "guitar", "hammock", "headphones", "kettle",
    "keyboard", "rain jacket", "running shoes", "sofa", "suitcase", "tent", "watch",
)  # fmt: skip
READ_CHARS = 2_000
TOPICS: Mapping[str, Set[str]] = {
    "comfort": {"comfort", "comfortable", "cosy", "easy", "gentle", "light", "pleasant", "soft"},
    "durability": {"durability", "durable", "last", "lasts", "robust", "solid", "strong", "sturdy"},
    "looks": {"beautiful", "colour", "colours", "design", "elegant", "look", "looks", "style"},
}
_PITCH = {"buy", "order", "purchase"}
_GOODBYE = {"bye", "farewell", "goodbye"}
_WORD = re.compile(r"[a-z]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class SellerMove:
    kind: Literal["chat", "pitch", "goodbye"]
    topic: str | None = None
    """The topic named most often in a chat message; `None` for a tie or no topic."""


def parse_move(text: str) -> SellerMove:
    words = Counter(_WORD.findall(text[:READ_CHARS].lower()))
    if words.keys() & _PITCH:
        return SellerMove(kind="pitch")
    if words.keys() & _GOODBYE:
        return SellerMove(kind="goodbye")
    named = {topic: sum(words[word] for word in naming) for topic, naming in TOPICS.items()}
    most = max(named.values())
    leading = [topic for topic, count in named.items() if count == most]
    return SellerMove(kind="chat", topic=leading[0] if most and len(leading) == 1 else None)


PATIENCE = 3
UPVOTE = 0.1
MOODS = ("cold", "warm", "hot")
WARMS_UP = (0.5, 0.5, 0.0)
"""Chance of the next mood, by mood, after talk of the right topic."""
CONVERTS = (0.1, 0.4, 0.8)
"""Chance of a sale after a pitch, by mood."""
SILENT = 0.25
"""Chance that a chat message gets no vote."""
_STARTS = (0.5, 0.3, 0.2)
_WANTS = {
    "comfort": "It has to be comfortable, for I use it all day.",
    "durability": "It must last, my old one broke.",
    "looks": "It should look good.",
}
_SAYS = ("I am only looking around.", "I could imagine it.", "I like it a lot.")


@dataclass(slots=True, kw_only=True)
class Customer:
    """A customer: the same one for all siblings, with independent reactions to each."""

    mood: int
    """Index into `MOODS`."""
    taste: str
    chances: random.Random
    messages: int = 0
    vote: float | None = None
    """Vote on the last message: the upvote, 0 for none, `None` for silence."""
    says: str = ""
    end: Literal["sold", "left"] | None = None

    @classmethod
    def arrive(cls, *, seed: int, group_seed: int) -> "Customer":
        rng = random.Random(group_seed)
        (mood,) = rng.choices(range(len(MOODS)), _STARTS)
        return cls(mood=mood, taste=rng.choice(sorted(TOPICS)), chances=random.Random(seed))

    @property
    def opening(self) -> str:
        return f"{_WANTS[self.taste]} {_SAYS[self.mood]}"

    def answer(self, move: SellerMove) -> str:
        self.messages += 1
        if move.kind == "pitch":
            self.vote = 0.0
            self.end = "sold" if self._happens(CONVERTS[self.mood]) else "left"
            return "Yes, I take it." if self.end == "sold" else "No, thank you."
        if move.kind == "goodbye":
            self.vote, self.end = None, "left"
            return "Goodbye."
        pleased = move.topic == self.taste
        self.vote = None if self._happens(SILENT) else UPVOTE * pleased
        self.mood += pleased and self._happens(WARMS_UP[self.mood])
        if self.messages == PATIENCE:
            self.end = "left"
            return "I have to go now."
        return f"Good to hear. {_SAYS[self.mood]}" if pleased else f"Well. {self.opening}"

    def _happens(self, chance: float) -> bool:
        return self.chances.random() < chance


_CHAT = {
    "comfort": "It is soft and light, and a comfort to use.",
    "durability": "It is sturdy, and lasts for years.",
    "looks": "Its design is elegant, in three colours.",
}


class SalesChatEnv(TurnLevelRewardMixin, AgentEnv):
    """A chat with a cold, warm or hot customer, with votes on some messages."""

    name = "sales_chat"
    sandbox = "none"
    required_fields = ("product",)
    system_prompt = (
        f"You sell in a chat. The customer answers {PATIENCE} messages at most. Talk about the one thing that"
        " matters to them, comfort, durability or looks, and they may warm to the product. Ask them to buy or"
        " order it, and they decide at once. Say goodbye, and they leave."
    )

    async def load_items(self) -> Sequence[Item]:
        if self.config.has_dataset:
            return await super().load_items()
        return [{"id": product, "product": product} for product in PRODUCTS]

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
        """Return the vote, or None for silence, which is not a vote of 0."""
        return _customer(ctx).vote

    async def compute_outcome(self, item: Item, trajectory: Trajectory, ctx: RolloutContext) -> float:
        return float(trajectory.end_reason == "sold")

    def scripted_choices(
        self, item: Item, messages: Sequence[Message], tools: Sequence[ToolSpec], skill: float
    ) -> Sequence[Choice]:
        """Mostly talk of the customer's topic with a pitch at the end; else a mistake."""
        topics = [parse_move(message.content).topic for message in messages if message.role == "user"]
        wanted = next(filter(None, topics), "comfort")
        is_last = sum(message.role == "assistant" for message in messages) == PATIENCE - 1
        pitch = say("Would you like to buy it?")
        chat = {topic: say(text) for topic, text in _CHAT.items()}
        others = [chat[topic] for topic in sorted(TOPICS) if topic != wanted]
        right, early = (pitch, chat[wanted]) if is_last else (chat[wanted], pitch)
        return mostly(0.2 + 0.79 * skill, [right], [early, *others, say("Goodbye."), say("")])


def _customer(ctx: RolloutContext) -> Customer:
    """Replay the customer from the seeds and messages; a record has both, so that it can be scored again."""
    customer = Customer.arrive(seed=ctx.seed, group_seed=ctx.group_seed)
    for message in ctx.messages:
        if message.role == "assistant":
            customer.says = customer.answer(parse_move(message.content))
    return customer
