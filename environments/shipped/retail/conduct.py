"""How an agent kept to the policy: one turn's rewards, from what its tools did and what was agreed before."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from environments.shipped.retail.shop import Event
from environments.shipped.retail.shop_tasks import Item, expected_actions
from environments.trajectory import Message

READS, WRITES, VIOLATION = 0.2, 0.3, -0.2
"""All required look-ups together, all required changes together, and a turn against the policy."""
_FINDS = ("find_user_by_email", "find_user_by_name")
_OPEN_TO_ALL = (*_FINDS, "get_product", "transfer_to_human")
_SHOWN = ("get_user", "get_order", "get_product", *_FINDS)
_AGREES = r"yes|yeah|yep|sure|correct|i confirm|confirmed|go ahead|please do|agreed"
_AGREES_OR_NOT = re.compile(rf"\b(?:(?P<yes>{_AGREES})|no|not|don't|never|stop)\b", re.IGNORECASE)
"""The first such word of an answer decides."""


@dataclass(slots=True, kw_only=True)
class Conduct:
    """What an agent did so far in one conversation."""

    item: Item
    customer: str | None = None
    """The user id that was found first."""
    looked_up: set[str] = field(default_factory=set[str])
    """Orders and products."""
    changed: list[Any] = field(default_factory=list[Any])
    """Expected actions that were taken."""

    def after(self, events: Sequence[Event], before: Sequence[Message]) -> dict[str, float] | None:
        """The rewards of a turn in which this happened; `None` where it neither helped nor harmed.

        Args:
            events: What the turn's tools did.
            before: The conversation that the turn answered.
        """
        rewards: dict[str, float] = {}
        for event in events:
            if not self._allowed(event, before):
                rewards["violation"] = VIOLATION
            for part, worth in (
                ("look-up", self._worth_of_look_up(event)),
                ("change", self._worth_of_change(event)),
            ):
                if worth:
                    rewards[part] = rewards.get(part, 0.0) + worth
        return rewards or None

    @property
    def is_informed(self) -> bool:
        """Whether it knows the customer and all that the task rests on."""
        return self.customer == self.item["user_id"] and self.looked_up >= set(self.item["reads"])

    def _allowed(self, event: Event, before: Sequence[Message]) -> bool:
        if self.customer is None and event.tool not in _OPEN_TO_ALL:
            return False
        if self.customer is not None and event.user_id not in (None, self.customer):
            return False
        return event.tool in (*_SHOWN, "transfer_to_human") or is_confirmed(event, before)

    def _worth_of_look_up(self, event: Event) -> float:
        """What a look-up is worth: finding the customer and each required read share `READS`."""
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

    def _worth_of_change(self, event: Event) -> float:
        done = {"tool": event.tool, "arguments": comparable(event.arguments)}
        expected = [
            {"tool": action["tool"], "arguments": comparable(action["arguments"])}
            for action in expected_actions(self.item)
        ]
        if done not in expected or done in self.changed:
            return 0.0
        self.changed.append(done)
        return WRITES / len(expected)


def is_confirmed(event: Event, before: Sequence[Message]) -> bool:
    """Whether the customer's last words agree, and answer words that named what is changed."""
    spoken = [message for message in before if message.role in ("user", "assistant")]
    customer = [index for index, message in enumerate(spoken) if message.role == "user"]
    if len(customer) < 2:
        return False
    asked = " ".join(message.content for message in spoken[customer[-2] + 1 : customer[-1]])
    subject = event.arguments.get("order_id") or event.arguments["street"]
    first = _AGREES_OR_NOT.search(spoken[customer[-1]].content)
    return subject in asked and first is not None and first["yes"] is not None


def comparable(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What a change comes to: text by its words, variants in any order, and no word of a summary."""
    old, new = arguments.get("variant_ids", []), arguments.get("new_variant_ids", [])
    words = {
        name: re.findall(r"\w+", value.casefold())
        for name, value in arguments.items()
        if isinstance(value, str) and name != "summary"
    }
    return words | {"variants": sorted(zip(old, new, strict=True) if new else old)}
