"""The customer: cold, warm or hot, with a taste, for at most three messages. The market of docs/credit.md."""

import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal

READ_CHARS = 2_000
"""Nobody reads on in a chat message; it also bounds what reading costs."""
TOPICS: Mapping[str, Set[str]] = {
    "comfort": {"comfort", "comfortable", "cosy", "easy", "gentle", "light", "pleasant", "soft"},
    "durability": {"durability", "durable", "last", "lasts", "robust", "solid", "strong", "sturdy"},
    "looks": {"beautiful", "colour", "colours", "design", "elegant", "look", "looks", "style"},
}
"""What a customer may care for, and the words that speak of it."""
_PITCH = {"buy", "order", "purchase"}
_GOODBYE = {"bye", "farewell", "goodbye"}
_WORD = re.compile(r"[a-z]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class SellerMove:
    kind: Literal["chat", "pitch", "goodbye"]
    topic: str | None = None
    """Of a chat: what most of its telling words speak of; `None` where no topic has the most."""


def move_of(text: str) -> SellerMove:
    """How the customer understands a message, whatever it is.

    A word that asks for the sale makes it a pitch, else a word of parting a goodbye; all else is chat, an
    empty message too. Naming every topic names none.
    """
    words = Counter(_WORD.findall(text[:READ_CHARS].lower()))
    if words.keys() & _PITCH:
        return SellerMove(kind="pitch")
    if words.keys() & _GOODBYE:
        return SellerMove(kind="goodbye")
    named = {topic: sum(words[word] for word in telling) for topic, telling in TOPICS.items()}
    most = max(named.values())
    leading = [topic for topic, count in named.items() if count == most]
    return SellerMove(kind="chat", topic=leading[0] if most and len(leading) == 1 else None)


PATIENCE = 3
"""Messages that a customer answers."""
UPVOTE = 0.1
MOODS = ("cold", "warm", "hot")
WARMS_UP = (0.5, 0.5, 0.0)
"""By mood: the chance that talk of what the customer cares for makes the next one."""
CONVERTS = (0.1, 0.4, 0.8)
"""By mood: the chance that a pitch sells."""
SILENT = 0.25
"""The chance that a chat message is not voted on at all."""
_STARTS = (0.5, 0.3, 0.2)
"""By mood: how many customers begin in it."""
_WANTS = {
    "comfort": "It has to be comfortable, for I use it all day.",
    "durability": "It must last, my old one broke.",
    "looks": "It should look good.",
}
_SAYS = ("I am only looking around.", "I could imagine it.", "I like it a lot.")


@dataclass(slots=True, kw_only=True)
class Customer:
    """One customer: siblings meet the same one, who reacts to each of them by chances of their own."""

    mood: int
    """Index into `MOODS`."""
    taste: str
    """The topic that matters."""
    chances: random.Random
    messages: int = 0
    vote: float | None = None
    """Of the last message: the upvote, 0 without one, `None` where the customer stayed silent."""
    says: str = ""
    """To the last message."""
    end: Literal["sold", "left"] | None = None

    @classmethod
    def arrive(cls, *, seed: int, group_seed: int) -> "Customer":
        """Mood and taste are those of the group, reactions those of the rollout."""
        drawn = random.Random(group_seed)
        (mood,) = drawn.choices(range(len(MOODS)), _STARTS)
        return cls(mood=mood, taste=drawn.choice(sorted(TOPICS)), chances=random.Random(seed))

    @classmethod
    def met(cls, said: Sequence[str], *, seed: int, group_seed: int) -> "Customer":
        """The one who came in, after these messages."""
        customer = cls.arrive(seed=seed, group_seed=group_seed)
        for text in said:
            customer.says = customer.answer(move_of(text))
        return customer

    @property
    def opening(self) -> str:
        return f"{_WANTS[self.taste]} {_SAYS[self.mood]}"

    def answer(self, move: SellerMove) -> str:
        """Vote, perhaps warm up, perhaps buy or leave, and reply."""
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


PRODUCTS: tuple[str, ...] = (
    "armchair", "backpack", "bicycle", "coat", "desk lamp", "guitar", "hammock", "headphones", "kettle",
    "keyboard", "rain jacket", "running shoes", "sofa", "suitcase", "tent", "watch",
)  # fmt: skip
