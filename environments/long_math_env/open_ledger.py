"""The ledger as the state of a rollout: how far it is read, and what was carried over right."""

from collections.abc import Sequence
from dataclasses import dataclass

from tools.errors import ToolError
from tools.registry import tool
from tools.tool_context import State, ToolContext


@dataclass(slots=True, kw_only=True)
class OpenLedger(State):
    """A ledger whose pages are read once, in order."""

    pages: Sequence[str]
    stocks: Sequence[int]
    """After each page, the sacks in the store that it changes."""
    read: int = 0
    """Pages."""

    @tool
    def next_page(self, ctx: ToolContext, carried: int | None = None) -> str:
        """Turn to the next page and read it. No page can be read again.

        Args:
            carried: How many sacks the store that the last page is about holds after that page. Leave it out
                for the first page.
        """
        if self.read == len(self.pages):
            raise ToolError("That was the last page. Answer now.")
        ctx.metrics["carried_right"] += self.read > 0 and carried == self.stocks[self.read - 1]
        self.read += 1
        ctx.metrics["pages_read"] = self.read
        return self.pages[self.read - 1]
