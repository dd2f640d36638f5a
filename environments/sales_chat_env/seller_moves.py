"""What a seller's message is to a customer, by its words: chat, a pitch or a goodbye."""

import re
from collections import Counter
from collections.abc import Mapping, Set
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
    """One message, as the customer understands it."""

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
