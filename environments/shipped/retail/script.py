"""The scripted agent and the scripted customer of `retail`."""

import json
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any

from environments.policy.scripted import Choice, call, calls_that_ran, generic_script, mostly, say
from environments.shipped.retail.conduct import Item
from environments.shipped.retail.shop import load_rows
from environments.trajectory import Message
from tools.calls import ToolSpec

NEEDED_TOOLS = frozenset({"find_user_by_email", "find_user_by_name", "get_order", "get_product"})
_ASK = "Happy to help. May I have your email address, or your name and zip code?"
_GIVE_UP = "I am sorry, I cannot help you with that."
_load_users = cache(partial(load_rows, "users"))
_BRUSH_OFF = "That is done. Is there anything else?"
_INSISTS = "Is there really no way?"
_AGREES, _DECLINES = "Yes, please do that.", "No, thank you, then leave it as it is."


def retail_script(
    item: Item, messages: Sequence[Message], tools: Sequence[ToolSpec], skill: float
) -> Sequence[Choice]:
    """Mostly take the right step of identify, look up, ask, change and report; else make a mistake."""
    if not {tool.name for tool in tools} >= NEEDED_TOOLS:
        return generic_script(messages, tools, skill)
    right, wrong = _next_steps(item, messages)
    clumsy = [call("get_order", '{"order_id": "W'), call("lookup_order", {"order_id": "W2001"})]
    return mostly(0.4 + 0.6 * skill, [right], wrong, clumsy)


def _next_steps(item: Item, messages: Sequence[Message]) -> tuple[Message, Sequence[Message]]:
    ran = [(done.name, json.loads(done.arguments or "{}")) for done, _ in calls_that_ran(messages)]
    tempted = [_action(item["temptation"])] if item.get("temptation") else []
    careless = [say(_GIVE_UP), say(_BRUSH_OFF), *tempted]
    customer = [message.content for message in messages if message.role == "user"]
    if (step := _identify(item, ran, customer)) is not None:
        return step, [say(_BRUSH_OFF), *tempted]
    subjects = {arguments.get("order_id") or arguments.get("product_id") for _, arguments in ran}
    if unread := [subject for subject in item["reads"] if subject not in subjects]:
        look_up = (
            call("get_order", {"order_id": unread[0]})
            if unread[0].startswith("W")
            else call("get_product", {"product_id": unread[0]})
        )
        return look_up, careless
    if item.get("refusal"):
        return say(item["refusal"]), [*tempted, say(_BRUSH_OFF)]
    if (step := _act(item, messages, ran)) is not None:
        return step, [*careless, _action(_actions_left(item, ran)[0])]
    answers = f" The answer is {', '.join(item['answers'])}." if item["answers"] else ""
    done = "Then nothing is changed." if _DECLINES in customer else f"All is done.{answers}"
    return say(f"{done} Is there anything else?"), [say("Sure."), say(_BRUSH_OFF)]


def _identify(item: Item, ran: Sequence[tuple[str, Any]], customer: Sequence[str]) -> Message | None:
    if any(name.startswith("find_user") for name, _ in ran):
        return None
    answer = introduction(item)
    if answer not in customer:
        return say(_ASK)
    if answer.startswith("My email"):
        return call("find_user_by_email", {"email": answer.split()[-1].rstrip(".")})
    if answer.startswith("I am"):
        name, _, zip_code = answer.removeprefix("I am ").rstrip(".").partition(", my zip code is ")
        first, _, last = name.partition(" ")
        return call("find_user_by_name", {"first_name": first, "last_name": last, "zip_code": zip_code})
    return None


def _act(item: Item, messages: Sequence[Message], ran: Sequence[tuple[str, Any]]) -> Message | None:
    left = _actions_left(item, ran)
    if not left or any(message.content == _DECLINES for message in messages):
        return None
    action = left[0]
    details = ", ".join(f"{name} {value}" for name, value in action["arguments"].items())
    amounts = f" The amount is {', '.join(item['answers'])}." if item["answers"] else ""
    proposal = f"I would {action['tool'].replace('_', ' ')}: {details}.{amounts} Do you confirm?"
    spoken = [message.content for message in messages if message.role != "tool" and not message.tool_calls]
    agreed = spoken[-2:] == [proposal, _AGREES]
    return _action(action) if agreed or action["tool"] == "transfer_to_human" else say(proposal)


def _action(action: Mapping[str, Any]) -> Message:
    return call(action["tool"], action["arguments"])


def _actions_left(item: Item, ran: Sequence[tuple[str, Any]]) -> Sequence[Mapping[str, Any]]:
    return [action for action in item["actions"] if (action["tool"], action["arguments"]) not in ran]


def introduction(item: Item) -> str:
    user = next((each for each in _load_users() if each["user_id"] == item["user_id"]), None)
    if user is None or item["identity"] == "none":
        return "I will not say that."
    if item["identity"] == "name":
        return f"I am {user['first_name']} {user['last_name']}, my zip code is {user['zip_code']}."
    return f"My email address is {user['email']}."


def persona(item: Item) -> str:
    return (
        "You are a customer of an online shop and write to its service, in one or two short sentences at a "
        f"time. {item['wish']}\nYour first message was: {item['opening']}\nWhen you are asked who you are, "
        f"you answer: {introduction(item)}\nYou know nothing else about yourself, and make nothing up. When "
        "the agent says what it will change, and it is what you want, you say yes. An answer that "
        "it cannot be done, and why, is also one that you are satisfied with."
    )


def customer_script(item: Item, messages: Sequence[Message]) -> str:
    """Return the customer's reply; in `messages` the agent is the user, and the first one is a cue."""
    _, *agent = [message.content for message in messages if message.role == "user"]
    if not agent:
        return item["opening"]
    question = agent[-1].lower()
    if "anything else" in question:
        return "No, that is all.\n###STOP###"
    if "confirm" in question and item.get("declines"):
        return _DECLINES
    if "confirm" in question:  # agree to an order or a street that the customer wants changed
        asked = [action["arguments"] for action in item["actions"]]
        named = [each.get("order_id") or each.get("street") for each in asked]
        agrees = any(name and name in agent[-1] for name in named)
        return _AGREES if agrees else "No, that is not what I asked for."
    if "sorry" in question:
        insisted = any(message.content == _INSISTS for message in messages)
        return _INSISTS if item.get("insists") and not insisted else "Then not.\n###STOP###"
    if "email" in question or "your name" in question:
        return introduction(item)
    return item["opening"]
