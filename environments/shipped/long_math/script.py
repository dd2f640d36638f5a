"""The scripted agent of `long_math`: it knows its context alone, and takes more notes with more skill."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from environments.policy.scripted import Choice, call, choices, say
from environments.shipped.long_math.ledgers import parse_change
from environments.trajectory import Message

_PROMPT = re.compile(r"has (\d+) pages\. Its stores: ([a-z, ]+)\.")
_PAGE = re.compile(r"Page (\d+) of \d+\n")
_NOTE = re.compile(r"After page (\d+): ([a-z\d, ]+)\.")
_STOCK = re.compile(r"([a-z]+) (\d{1,6})")
_CLOSED = "That was the last page."


@dataclass(slots=True, kw_only=True)
class AuditMemory:
    pages: int = 0
    stores: tuple[str, ...] = ()
    page: int = 0
    """The last page known to be read."""
    about: str | None = None
    """The store of the page numbered `page`, if it is in the context."""
    stocks: dict[str, int] = field(default_factory=dict[str, int])

    @classmethod
    def of(cls, messages: Sequence[Message]) -> "AuditMemory":
        memory = cls()
        for message in messages:
            memory.see(message)
        return memory

    @property
    def note(self) -> str:
        return self.note_of(self.stores)

    @property
    def last_stock(self) -> int | None:
        return None if self.about is None else self.stocks.get(self.about)

    def note_of(self, stores: Sequence[str]) -> str:
        known = [f"{store} {self.stocks[store]}" for store in stores if store in self.stocks]
        return f"After page {self.page}: {', '.join(known) or 'nothing'}."

    def see(self, message: Message) -> None:
        if message.role == "tool":
            self._see_page(message.content)
            return
        if message.role == "user" and (prompt := _PROMPT.search(message.content)):
            self.pages, self.stores = int(prompt[1]), tuple(prompt[2].split(", "))
        for note in _NOTE.finditer(message.content):
            self.page = int(note[1])
            self.stocks.update((store, int(sacks)) for store, sacks in _STOCK.findall(note[2]))
        for tool_call in message.tool_calls:
            carried = _parse_carried(tool_call.arguments)
            if carried is not None and self.about is not None:
                self.stocks[self.about] = carried

    def _see_page(self, text: str) -> None:
        if _CLOSED in text:
            self.page = self.pages
        heading = _PAGE.match(text)
        if heading is None:
            return
        page, change = int(heading[1]), parse_change(text)
        self.about = None if change is None or page < self.page else change.store
        # A summary may be followed by turns that it already covers.
        if change is not None and (page > self.page or change.store not in self.stocks):
            stock = change.stock(self.stocks)
            self.stocks.pop(change.store, None)
            if stock is not None:
                self.stocks[change.store] = stock
        self.page = max(self.page, page)


def _parse_carried(arguments: str) -> int | None:
    try:
        given: Any = json.loads(arguments)
    except ValueError:
        return None
    value = cast("dict[str, Any]", given).get("carried") if isinstance(given, dict) else None
    return value if type(value) is int else None


_SLIP = 10
_ROLE = re.compile(r"^\[(system|user|assistant|tool)\]\n", re.MULTILINE)
_CALL = re.compile(r"^next_page\((.*)\)$", re.MULTILINE)


def ledger_script(messages: Sequence[Message], skill: float) -> Sequence[Choice]:
    """Mostly turn the page with the right number, and answer with the sum of the known stocks at the end."""
    memory = AuditMemory.of(messages)
    if memory.page >= memory.pages:
        p_right = 1 - 0.1 * (1 - skill)
        return choices((p_right, [_answer(memory)]), (1 - p_right, [_answer(memory, slip=_SLIP)]))
    p_right = 1 - 0.06 * (1 - skill)
    stock = memory.last_stock
    carried = {} if stock is None else {"carried": stock}
    slipped = {} if stock is None else {"carried": stock + _SLIP}
    wrong = [
        call("next_page", slipped),
        call("next_page", '{"carried": '),
        call("turn_page", {}),
        _answer(memory),
    ]
    return choices(
        (p_right * skill, [call("next_page", carried, content=memory.note)]),
        (p_right * (1 - skill), [call("next_page", carried)]),
        (1 - p_right, wrong),
    )


def ledger_summary(messages: Sequence[Message], skill: float) -> Sequence[Choice]:
    """Mostly summarise all known stocks; else half of the stores, or none."""
    memory = AuditMemory.of(messages)
    half = memory.note_of(memory.stores[::2])
    lost = "I have read some pages of the ledger and shall go on with the next one."
    p_right = 0.4 + 0.6 * skill
    return choices((p_right, [say(memory.note)]), (1 - p_right, [say(half), say(lost)]))


def second_summary(messages: Sequence[Message]) -> str:
    _, *parts = _ROLE.split(messages[-1].content)
    conversation: list[Message] = []
    for role, content in zip(parts[::2], parts[1::2], strict=True):
        if role == "assistant" and (called := _CALL.search(content)):
            conversation.append(call("next_page", called[1], content=content))
        else:
            conversation.append(Message(role="tool" if role == "tool" else "user", content=content))
    return AuditMemory.of(conversation).note


def _answer(memory: AuditMemory, *, slip: int = 0) -> Message:
    return say(f"<answer>{sum(memory.stocks.values()) + slip}</answer>")
