"""The scripted agent of `sales_chat`: it speaks of what matters, then pitches, as its skill allows."""

from collections.abc import Sequence

from environments.policy.scripted import Choice, choices, say
from environments.shipped.sales_chat.customer import PATIENCE, TOPICS, move_of
from environments.trajectory import Message

_CHAT = {
    "comfort": "It is soft and light, and a comfort to use.",
    "durability": "It is sturdy, and lasts for years.",
    "looks": "Its design is elegant, in three colours.",
}


def sales_script(messages: Sequence[Message], skill: float) -> Sequence[Choice]:
    """What comes next: mostly talk of what the customer wants and a pitch at the end, else a mistake.

    Mistakes are talk of something else, a pitch too early or none at all, a goodbye, and saying nothing.
    """
    wanted = next((topic for message in messages if (topic := _topic_in(message)) is not None), "comfort")
    is_last = sum(message.role == "assistant" for message in messages) == PATIENCE - 1
    pitch = say("Would you like to buy it?")
    chat = {topic: say(text) for topic, text in _CHAT.items()}
    others = [chat[topic] for topic in sorted(TOPICS) if topic != wanted]
    right, early = (pitch, chat[wanted]) if is_last else (chat[wanted], pitch)
    wrong = [early, *others, say("Goodbye."), say("")]
    p_right = 0.2 + 0.79 * skill
    return choices((p_right, [right]), (1 - p_right, wrong))


def _topic_in(message: Message) -> str | None:
    return move_of(message.content).topic if message.role == "user" else None
