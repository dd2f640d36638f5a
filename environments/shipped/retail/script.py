"""The scripted agent of `retail`: it knows what the task asks for, and makes mistakes as its skill allows."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from environments.policy.scripted import Choice, call, calls_that_ran, generic_script, mostly, say
from environments.shipped.retail.shop_tasks import AGREES, DECLINES, Item, introduction
from environments.trajectory import Message
from tools.calls import ToolSpec

NEEDED_TOOLS = frozenset({"find_user_by_email", "find_user_by_name", "get_order", "get_product"})
_ASK = "Happy to help. May I have your email address, or your name and zip code?"
_GIVE_UP = "I am sorry, I cannot help you with that."
_BRUSH_OFF = "That is done. Is there anything else?"


def retail_script(
    item: Item, messages: Sequence[Message], tools: Sequence[ToolSpec], skill: float
) -> Sequence[Choice]:
    """What comes next: mostly the right step of identify, look up, ask, change, report; else a mistake.

    With skill 1 every step is right. Of the other steps half are wrong (not asking first, giving up, claiming
    what was not done, doing what the policy forbids) and half clumsy (a call that cannot be read, a tool that
    does not exist), after which the agent tries again. An agent that lacks a tool plays `generic_script`.
    """
    if not {tool.name for tool in tools} >= NEEDED_TOOLS:
        return generic_script(messages, tools, skill)
    right, wrong = _next_steps(item, messages)
    clumsy = [call("get_order", '{"order_id": "W'), call("lookup_order", {"order_id": "W2001"})]
    return mostly(0.4 + 0.6 * skill, [right], wrong, clumsy)


def _next_steps(item: Item, messages: Sequence[Message]) -> tuple[Message, Sequence[Message]]:
    ran = [(done.name, json.loads(done.arguments or "{}")) for done, _ in calls_that_ran(messages)]
    tempted = [_action(item["temptation"])] if item.get("temptation") else []
    careless = [say(_GIVE_UP), say(_BRUSH_OFF), *tempted]
    heard = [message.content for message in messages if message.role == "user"]
    if (step := _identify(item, ran, heard)) is not None:
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
        return step, [*careless, _action(_left(item, ran)[0])]
    answers = f" The answer is {', '.join(item['answers'])}." if item["answers"] else ""
    done = "Then nothing is changed." if DECLINES in heard else f"All is done.{answers}"
    return say(f"{done} Is there anything else?"), [say("Sure."), say(_BRUSH_OFF)]


def _identify(item: Item, ran: Sequence[tuple[str, Any]], heard: Sequence[str]) -> Message | None:
    """The step towards knowing who the customer is, while it is not known."""
    if any(name.startswith("find_user") for name, _ in ran):
        return None
    answer = introduction(item)
    if answer not in heard:
        return say(_ASK)
    if answer.startswith("My email"):
        return call("find_user_by_email", {"email": answer.split()[-1].rstrip(".")})
    if answer.startswith("I am"):
        name, _, zip_code = answer.removeprefix("I am ").rstrip(".").partition(", my zip code is ")
        first, _, last = name.partition(" ")
        return call("find_user_by_name", {"first_name": first, "last_name": last, "zip_code": zip_code})
    return None


def _act(item: Item, messages: Sequence[Message], ran: Sequence[tuple[str, Any]]) -> Message | None:
    """The next change: proposed, or made once the customer agreed; `None` when nothing is left to do."""
    left = _left(item, ran)
    if not left or any(message.content == DECLINES for message in messages):
        return None
    action = left[0]
    details = ", ".join(f"{name} {value}" for name, value in action["arguments"].items())
    amounts = f" The amount is {', '.join(item['answers'])}." if item["answers"] else ""
    proposal = f"I would {action['tool'].replace('_', ' ')}: {details}.{amounts} Do you confirm?"
    spoken = [message.content for message in messages if message.role != "tool" and not message.tool_calls]
    agreed = spoken[-2:] == [proposal, AGREES]
    return _action(action) if agreed or action["tool"] == "transfer_to_human" else say(proposal)


def _action(action: Mapping[str, Any]) -> Message:
    return call(action["tool"], action["arguments"])


def _left(item: Item, ran: Sequence[tuple[str, Any]]) -> Sequence[Mapping[str, Any]]:
    return [action for action in item["actions"] if (action["tool"], action["arguments"]) not in ran]
