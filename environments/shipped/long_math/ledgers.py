"""Ledgers made from a seed: pages with one fact each, which change the stocks of stores."""

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tools.calls import State, ToolContext
from tools.errors import DatasetError, ToolError
from tools.registry import tool

COUNTED = "A count found {sacks} sacks in the {store}."
BROUGHT = "{sacks} sacks were brought into the {store}."
SOLD = "{sacks} sacks were sold out of the {store}."
ABOVE = "By evening the {store} held {sacks} sacks more than the {other}."
BELOW = "By evening the {store} held {sacks} sacks fewer than the {other}."
_SENTENCES = (COUNTED, BROUGHT, SOLD, ABOVE, BELOW)


@dataclass(frozen=True, slots=True, kw_only=True)
class StockChange:
    sentence: str
    store: str
    sacks: int
    other: str | None = None

    @property
    def text(self) -> str:
        return self.sentence.format(store=self.store, sacks=self.sacks, other=self.other)

    def stock(self, known: Mapping[str, int]) -> int | None:
        """Return the sacks in the store after the change; None if the stock before it is unknown."""
        if self.sentence == COUNTED:
            return self.sacks
        before = known.get(self.other or self.store)
        if before is None:
            return None
        return before - self.sacks if self.sentence in (SOLD, BELOW) else before + self.sacks


def parse_change(text: str) -> StockChange | None:
    found = [(match.start(), each, match) for each in _SENTENCES if (match := _PATTERNS[each].search(text))]
    if not found:
        return None
    _, sentence, match = min(found, key=lambda each: each[0])
    parts = match.groupdict()
    return StockChange(
        sentence=sentence, store=parts["store"], sacks=int(parts["sacks"]), other=parts.get("other")
    )


_PATTERNS: Mapping[str, re.Pattern[str]] = {
    sentence: re.compile(
        re.escape(sentence)
        .replace(r"\{sacks\}", r"(?P<sacks>\d{1,6})")
        .replace(r"\{store\}", "(?P<store>[a-z]+)")
        .replace(r"\{other\}", "(?P<other>[a-z]+)")
    )
    for sentence in _SENTENCES
}


Item = Mapping[str, Any]
"""`id`, the names of the `stores`, the text of the `pages`, the sacks in the store of each page after it
(`stocks`), and the sum over all stores at the end (`answer`)."""
FIELDS = ("id", "stores", "pages", "stocks", "answer")

STORES = (
    "mill", "quay", "abbey", "barn", "tower", "cellar", "chapel", "forge", "inn", "court", "weir", "lodge",
)  # fmt: skip
_LEAST, _MOST = 20, 400
_ASIDES = (
    "Rain kept the carters under the roof until noon, and nobody was in a hurry to leave.",
    "The roof of the {store} was mended for {number} pence, which the steward called too dear.",
    "A boy was paid {number} pence to keep the rats out of the {store} for another week.",
    "The lock of the {store} was oiled, and its key hung up again behind the door.",
    "{number} men asked for work at the gate of the {store}; two of them were taken on.",
    "The scales were tested against the weights of the guild and found to be true.",
    "A carter lost a wheel near the {store} and was late by {number} minutes.",
    "The price of flour stood at {number} pence, a little above that of the week before.",
    "The clerk bought ink and {number} quills, and noted that the old ones were worn out.",
    "A letter about the tolls came in, to be answered before the {number}th of the month.",
)


def make_ledgers(split: str, *, seed: int, count: int, facts: int, stores: int) -> list[dict[str, Any]]:
    """Make ledgers, each from a separate seed, so that a larger `count` keeps the first ones."""
    return [_ledger(f"{split}-{seed}-{index}", facts, stores) for index in range(count)]


def refuse_unreadable(items: Sequence[Item]) -> None:
    for item in items:
        try:
            ledger = _Ledger.model_validate(item)
        except ValidationError as error:
            problem = error.errors()[0]
            where = ".".join(map(str, problem["loc"]))
            raise DatasetError(f"the ledger {item['id']!r:.100}: {where}: {problem['msg']}") from None
        if len(ledger.pages) != len(ledger.stocks):
            raise DatasetError(
                f"the ledger {item['id']!r:.100} has {len(ledger.pages)} pages and {len(ledger.stocks)} "
                f"stocks; give one for each page"
            )


class _Ledger(BaseModel):
    model_config = ConfigDict(strict=True)

    id: str
    stores: list[str]
    pages: Annotated[list[str], Field(min_length=1)]
    stocks: list[int]
    answer: int


def _ledger(name: str, facts: int, stores: int) -> dict[str, Any]:
    rng = random.Random(f"long_math:{name}:{facts}:{stores}")
    names = rng.sample(STORES, stores)
    pages: list[str] = []
    stocks: list[int] = []
    known: dict[str, int] = {}
    while len(pages) < facts:
        change = _change(rng, names, known)
        stock = change.stock(known)
        if stock is None or not _LEAST <= stock <= _MOST or known.get(change.store) == stock:
            continue
        known.pop(change.store, None)  # keeps the longest unchanged store first
        known[change.store] = stock
        stocks.append(stock)
        sentences = [
            aside.format(store=rng.choice(names), number=rng.randint(3, 28))
            for aside in rng.sample(_ASIDES, 3)
        ]
        sentences.insert(rng.randint(0, len(sentences)), change.text)
        pages.append(f"Page {len(stocks)} of {facts}\n{' '.join(sentences)}")
    return {"id": name, "stores": names, "pages": pages, "stocks": stocks, "answer": sum(known.values())}


def _change(rng: random.Random, names: Sequence[str], known: Mapping[str, int]) -> StockChange:
    """Draw a change that builds on the longest unchanged store, after a count of each store."""
    if len(known) < len(names):
        return StockChange(sentence=COUNTED, store=names[len(known)], sacks=rng.randint(60, 240))
    oldest = next(iter(known))
    sacks = rng.randint(3, 60)
    if rng.random() < 0.2:
        return StockChange(sentence=rng.choice((BROUGHT, SOLD)), store=oldest, sacks=sacks)
    store = rng.choice([name for name in names if name != oldest])
    return StockChange(sentence=rng.choice((ABOVE, BELOW)), store=store, sacks=sacks, other=oldest)


@dataclass(slots=True, kw_only=True)
class OpenLedger(State):
    pages: Sequence[str]
    stocks: Sequence[int]
    """Sacks after each page in the store that it changes."""
    read: int = 0

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
