"""The scripted customer of `retail`: says what a simulated one would, by what the agent said last."""

from collections.abc import Sequence

from environments.retail_env.shop_tasks import Item, introduction
from environments.trajectory import Message

DONE = "###STOP###"
"""A customer who says it is done."""
INSISTS = "Is there really no way?"
AGREES, DECLINES = "Yes, please do that.", "No, thank you, then leave it as it is."


def customer_says(item: Item, messages: Sequence[Message]) -> str:
    """The next words of a customer, to whom the agent is the user; its first message opens the scene."""
    _, *agent = [message.content for message in messages if message.role == "user"]
    if not agent:
        return item["opening"]
    asked = agent[-1].lower()
    if "anything else" in asked:
        return f"No, that is all. {DONE}"
    if "confirm" in asked:
        return _decision(item, agent[-1])
    if "sorry" in asked:
        insisted = any(message.content == INSISTS for message in messages)
        return INSISTS if item.get("insists") and not insisted else f"Then not. {DONE}"
    if "email" in asked or "your name" in asked:
        return introduction(item)
    return item["opening"]


def _decision(item: Item, proposal: str) -> str:
    """Yes to what names an order or a street that the customer wants changed."""
    if item.get("declines"):
        return DECLINES
    named = [
        action["arguments"].get("order_id") or action["arguments"].get("street") for action in item["actions"]
    ]
    return AGREES if any(name and name in proposal for name in named) else "No, that is not what I asked for."
