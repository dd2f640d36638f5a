"""A task's expected changes, and the agent's conduct: look-ups, changes and violations of the policy."""

import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from environments.shipped.retail.shop import Event, Shop, end_state, open_shop
from environments.trajectory import Message
from tools.errors import DatasetError, ToolError

Item = Mapping[str, Any]
"""A line of `tasks.jsonl`."""
REQUIRED_FIELDS = ("id", "user_id", "identity", "opening", "wish", "reads", "actions", "answers")

READS, WRITES, VIOLATION = 0.2, 0.3, -0.2
"""Rewards of all required look-ups, of all required changes, and of a turn that violates the policy."""
_FINDS = ("find_user_by_email", "find_user_by_name")
_NEED_NO_CUSTOMER = (*_FINDS, "get_product", "transfer_to_human")
_READ_ONLY = ("get_user", "get_order", "get_product", *_FINDS)
_YES = r"yes|yeah|yep|sure|correct|i confirm|confirmed|go ahead|please do|agreed"
_YES_OR_NO = re.compile(rf"\b(?:(?P<yes>{_YES})|no|not|don't|never|stop)\b", re.IGNORECASE)


def refuse_impossible(items: Sequence[Item]) -> None:
    for item in items:
        try:
            required_end_state(item)
        except (ToolError, AttributeError, KeyError, TypeError) as error:
            raise DatasetError(f"task {item['id']!r}: its actions cannot be taken: {error}") from None


def required_actions(item: Item) -> Sequence[Mapping[str, Any]]:
    return [] if item.get("declines") else item["actions"]


def required_end_state(item: Item) -> str:
    with closing(open_shop()) as connection:
        shop = Shop(connection)
        for action in required_actions(item):
            if action["tool"] == "transfer_to_human":
                shop.hand_over()
            else:
                getattr(shop, action["tool"])(**action["arguments"])
        return end_state(connection)


@dataclass(slots=True, kw_only=True)
class Conduct:
    item: Item
    customer: str | None = None
    looked_up: set[str] = field(default_factory=set[str])
    changed: list[Any] = field(default_factory=list[Any])

    def score(self, events: Sequence[Event], before: Sequence[Message]) -> dict[str, float] | None:
        """Return the rewards of a turn with these tool events; None if it neither helped nor harmed."""
        rewards: dict[str, float] = {}
        for event in events:
            if not self._is_allowed(event, before):
                rewards["violation"] = VIOLATION
            worth = {"look-up": self._score_look_up(event), "change": self._score_change(event)}
            for part in filter(worth.get, worth):
                rewards[part] = rewards.get(part, 0.0) + worth[part]
        return rewards or None

    @property
    def is_informed(self) -> bool:
        """Whether it found the customer and made all required look-ups."""
        return self.customer == self.item["user_id"] and self.looked_up >= set(self.item["reads"])

    def _is_allowed(self, event: Event, before: Sequence[Message]) -> bool:
        if self.customer is None and event.tool not in _NEED_NO_CUSTOMER:
            return False
        if self.customer is not None and event.user_id not in (None, self.customer):
            return False
        return event.tool in (*_READ_ONLY, "transfer_to_human") or is_confirmed(event, before)

    def _score_look_up(self, event: Event) -> float:
        share = READS / (1 + len(self.item["reads"]))
        if event.tool in _FINDS:
            is_new, self.customer = self.customer is None, self.customer or event.user_id
            return share * (is_new and self.customer == self.item["user_id"])
        if event.tool not in ("get_order", "get_product"):
            return 0.0
        (subject,) = event.arguments.values()
        is_new = subject in self.item["reads"] and subject not in self.looked_up
        self.looked_up.add(subject)
        return share * is_new

    def _score_change(self, event: Event) -> float:
        done = {"tool": event.tool, "arguments": comparable(event.arguments)}
        expected = [
            {"tool": action["tool"], "arguments": comparable(action["arguments"])}
            for action in required_actions(self.item)
        ]
        if done not in expected or done in self.changed:
            return 0.0
        self.changed.append(done)
        return WRITES / len(expected)


def is_confirmed(event: Event, before: Sequence[Message]) -> bool:
    """Whether the customer's last message agrees with a message that named the order or address to change."""
    spoken = [message for message in before if message.role in ("user", "assistant")]
    customer = [index for index, message in enumerate(spoken) if message.role == "user"]
    if len(customer) < 2:
        return False
    question = " ".join(message.content for message in spoken[customer[-2] + 1 : customer[-1]])
    subject = event.arguments.get("order_id") or event.arguments["street"]
    first = _YES_OR_NO.search(spoken[customer[-1]].content)
    return subject in question and first is not None and first["yes"] is not None


def comparable(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments to compare: texts as words, variants in any order, and no summary."""
    old, new = arguments.get("variant_ids", []), arguments.get("new_variant_ids", [])
    words = {
        name: re.findall(r"\w+", value.casefold())
        for name, value in arguments.items()
        if isinstance(value, str) and name != "summary"
    }
    return words | {"variants": sorted(zip(old, new, strict=True) if new else old)}
