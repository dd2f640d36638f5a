"""What a reader of a conversation about a ledger knows: from its pages, its notes and its summaries alone."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from environments.long_math_env.stock_change import change_in
from environments.trajectory import Message

_ASKED = re.compile(r"has (\d+) pages\. Its stores: ([a-z, ]+)\.")
_PAGE = re.compile(r"Page (\d+) of \d+\n")
_NOTE = re.compile(r"After page (\d+): ([a-z\d, ]+)\.")
_STOCK = re.compile(r"([a-z]+) (\d{1,6})")
_CLOSED = "That was the last page."


@dataclass(slots=True, kw_only=True)
class AuditMemory:
    """Grows with each message that is seen."""

    pages: int = 0
    """Of the ledger."""
    stores: tuple[str, ...] = ()
    page: int = 0
    """The last one that is known to be read."""
    about: str | None = None
    """The store that this page is about, where the page was seen."""
    stocks: dict[str, int] = field(default_factory=dict[str, int])
    """Sacks by store, where they are known."""

    @classmethod
    def of(cls, messages: Sequence[Message]) -> "AuditMemory":
        """What a conversation shows."""
        memory = cls()
        for message in messages:
            memory.see(message)
        return memory

    @property
    def note(self) -> str:
        """All that is known, in a line that a later reader understands."""
        return self.note_of(self.stores)

    @property
    def last_stock(self) -> int | None:
        """Sacks in the store of the last page."""
        return None if self.about is None else self.stocks.get(self.about)

    def note_of(self, stores: Sequence[str]) -> str:
        """What is known of some stores."""
        known = [f"{store} {self.stocks[store]}" for store in stores if store in self.stocks]
        return f"After page {self.page}: {', '.join(known) or 'nothing'}."

    def see(self, message: Message) -> None:
        """Take in what a message says."""
        if message.role == "tool":
            self._see_page(message.content)
            return
        if message.role == "user" and (asked := _ASKED.search(message.content)):
            self.pages, self.stores = int(asked[1]), tuple(asked[2].split(", "))
        for note in _NOTE.finditer(message.content):
            self.page = int(note[1])
            self.stocks.update((store, int(sacks)) for store, sacks in _STOCK.findall(note[2]))
        for tool_call in message.tool_calls:
            carried = _carried(tool_call.arguments)
            if carried is not None and self.about is not None:
                self.stocks[self.about] = carried

    def _see_page(self, text: str) -> None:
        if _CLOSED in text:
            self.page = self.pages
        heading = _PAGE.match(text)
        if heading is None:
            return
        page, change = int(heading[1]), change_in(text)
        self.about = None if change is None or page < self.page else change.store
        # Turns that a summary knows of already may follow it.
        if change is not None and (page > self.page or change.store not in self.stocks):
            stock = change.stock(self.stocks)
            self.stocks.pop(change.store, None)
            if stock is not None:
                self.stocks[change.store] = stock
        self.page = max(self.page, page)


def _carried(arguments: str) -> int | None:
    try:
        given: Any = json.loads(arguments)
    except ValueError:
        return None
    value = cast("dict[str, Any]", given).get("carried") if isinstance(given, dict) else None
    return value if type(value) is int else None
