"""Ledgers made from a seed: pages with one fact each, and what follows from them."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from environments.long_math_env.stock_change import ABOVE, BELOW, BROUGHT, COUNTED, SOLD, StockChange
from tools.errors import DatasetError

Item = Mapping[str, Any]
"""`title`, the names of the `stores`, the text of the `pages`, after each page the sacks in the store that it
changes (`stocks`), and the sum over all stores at the end (`answer`)."""
FIELDS = ("title", "stores", "pages", "stocks", "answer")

STORES = (
    "mill", "quay", "abbey", "barn", "tower", "cellar", "chapel", "forge", "inn", "court", "weir", "lodge",
)  # fmt: skip
_LEAST, _MOST = 20, 400
"""Sacks in a store."""
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


def made_ledgers(split: str, *, seed: int, count: int, facts: int, stores: int) -> list[dict[str, Any]]:
    """Ledgers, each from its own seed: the first ones stay the same when more are asked for.

    Args:
        split: `train` or `eval`, whose ledgers differ.
        seed: of all of them.
        count: how many.
        facts: pages of each.
        stores: stores of each, as many as have names at most.
    """
    return [_ledger(f"{split}-{seed}-{index}", facts, stores) for index in range(count)]


def refuse_unreadable(items: Sequence[Item]) -> None:
    """Raise DatasetError for an item that is no ledger."""
    for item in items:
        pages, stocks = item["pages"], item["stocks"]
        texts = isinstance(pages, list) and isinstance(item["stores"], list)
        numbers = isinstance(stocks, list) and all(type(each) is int for each in [*stocks, item["answer"]])
        if not (texts and numbers and pages and len(pages) == len(stocks)):
            raise DatasetError(
                f"the ledger {item['title']!r:.100} needs a list of stores, a list of pages, a whole number "
                f"in stocks for each page, and a whole number as its answer"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fact:
    """A page's fact, and what follows from it."""

    change: StockChange
    stock: int
    """Sacks in its store."""
    together: int
    """Sacks in all stores."""


def _ledger(title: str, facts: int, stores: int) -> dict[str, Any]:
    rng = random.Random(f"long_math:{title}:{facts}:{stores}")
    names = rng.sample(STORES, stores)
    while True:
        chain = _chain(rng, names, facts)
        answer = chain[-1].together
        if all(fact.together != answer for fact in chain[:-1]):
            break  # else whoever stopped early could be right
    return {
        "id": title,
        "title": title,
        "stores": names,
        "pages": [
            f"Page {number} of {facts}\n{_page_text(rng, fact.change, names)}"
            for number, fact in enumerate(chain, 1)
        ],
        "stocks": [fact.stock for fact in chain],
        "answer": answer,
    }


def _chain(rng: random.Random, names: Sequence[str], facts: int) -> list[_Fact]:
    chain: list[_Fact] = []
    stocks: dict[str, int] = {}
    while len(chain) < facts:
        change = _change(rng, names, stocks)
        stock = change.stock(stocks)
        if stock is not None and _LEAST <= stock <= _MOST and stocks.get(change.store) != stock:
            stocks.pop(change.store, None)  # so that the store unchanged for longest is the first
            stocks[change.store] = stock
            chain.append(_Fact(change=change, stock=stock, together=sum(stocks.values())))
    return chain


def _change(rng: random.Random, names: Sequence[str], stocks: Mapping[str, int]) -> StockChange:
    """A change that builds on the store which was not changed for longest; first each store is counted."""
    if len(stocks) < len(names):
        return StockChange(sentence=COUNTED, store=names[len(stocks)], sacks=rng.randint(60, 240))
    oldest = next(iter(stocks))
    sacks = rng.randint(3, 60)
    if rng.random() < 0.2:
        return StockChange(sentence=rng.choice((BROUGHT, SOLD)), store=oldest, sacks=sacks)
    store = rng.choice([name for name in names if name != oldest])
    return StockChange(sentence=rng.choice((ABOVE, BELOW)), store=store, sacks=sacks, other=oldest)


def _page_text(rng: random.Random, change: StockChange, names: Sequence[str]) -> str:
    said = [
        aside.format(store=rng.choice(names), number=rng.randint(3, 28)) for aside in rng.sample(_ASIDES, 3)
    ]
    said.insert(rng.randint(0, len(said)), change.text)
    return " ".join(said)
