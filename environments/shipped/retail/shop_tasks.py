"""The tasks: what a customer wants and writes, and how the shop's database should stand afterwards."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import cache
from typing import Any

from environments.shipped.retail.shop import Shop, end_state, open_shop, rows_of
from environments.trajectory import Message
from tools.errors import DatasetError, ToolError

Item = Mapping[str, Any]
"""A line of `tasks.jsonl`."""
REQUIRED_FIELDS = ("id", "user_id", "identity", "opening", "wish", "reads", "actions", "answers")
"""Those that only a scripted agent or customer needs may be missing."""


def embedded_tasks() -> list[dict[str, Any]]:
    return rows_of("tasks")


def refuse_impossible(items: Sequence[Item]) -> None:
    """Raise DatasetError for a task whose expected actions the shop does not allow."""
    for item in items:
        try:
            expected_end_state(item)
        except (ToolError, AttributeError, KeyError, TypeError) as error:
            raise DatasetError(f"task {item['id']!r}: its actions cannot be taken: {error}") from None


def expected_actions(item: Item) -> Sequence[Mapping[str, Any]]:
    return [] if item.get("declines") else item["actions"]


def expected_end_state(item: Item) -> str:
    """What `end_state` gives when exactly the expected actions were taken."""
    with closing(open_shop()) as connection:
        shop = Shop(connection)
        for action in expected_actions(item):
            if action["tool"] == "transfer_to_human":
                shop.hand_over()
            else:
                getattr(shop, action["tool"])(**action["arguments"])
        return end_state(connection)


def introduction(item: Item) -> str:
    user = _customers().get(item["user_id"])
    if user is None or item["identity"] == "none":
        return "I will not say that."
    if item["identity"] == "name":
        return f"I am {user['first_name']} {user['last_name']}, my zip code is {user['zip_code']}."
    return f"My email address is {user['email']}."


@cache
def _customers() -> Mapping[str, Mapping[str, Any]]:
    return {user["user_id"]: user for user in rows_of("users")}


def persona(item: Item) -> str:
    return (
        "You are a customer of an online shop and write to its service, in one or two short sentences at a "
        f"time. {item['wish']}\nYour first message was: {item['opening']}\nWhen you are asked who you are, "
        f"you answer: {introduction(item)}\nYou know nothing else about yourself, and make nothing up. When "
        "the agent says what it will change, and it is what you want, you say yes. An answer that "
        "it cannot be done, and why, is also one that you are satisfied with."
    )


INSISTS = "Is there really no way?"
AGREES, DECLINES = "Yes, please do that.", "No, thank you, then leave it as it is."


def customer_says(item: Item, messages: Sequence[Message]) -> str:
    """The next words of a customer, to whom the agent is the user; its first message opens the scene."""
    _, *agent = [message.content for message in messages if message.role == "user"]
    if not agent:
        return item["opening"]
    asked = agent[-1].lower()
    if "anything else" in asked:
        return "No, that is all.\n###STOP###"
    if "confirm" in asked:
        return _decision(item, agent[-1])
    if "sorry" in asked:
        insisted = any(message.content == INSISTS for message in messages)
        return INSISTS if item.get("insists") and not insisted else "Then not.\n###STOP###"
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
