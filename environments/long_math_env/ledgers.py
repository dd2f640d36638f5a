"""Ledgers made from a seed: pages with one fact each, and what follows from them."""

import random
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from environments.long_math_env.stock_change import ABOVE, BELOW, BROUGHT, COUNTED, SOLD, StockChange
from tools.errors import DatasetError

Item = Mapping[str, Any]
"""`id`, the names of the `stores`, the text of the `pages`, after each page the sacks in the store that it
is about (`stocks`), and the sum over all stores at the end (`answer`)."""
FIELDS = ("id", "stores", "pages", "stocks", "answer")

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
    """An item of a dataset."""

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
        known.pop(change.store, None)  # so that the store unchanged for longest is the first
        known[change.store] = stock
        stocks.append(stock)
        pages.append(f"Page {len(stocks)} of {facts}\n{_page_text(rng, change, names)}")
    return {"id": name, "stores": names, "pages": pages, "stocks": stocks, "answer": sum(known.values())}


def _change(rng: random.Random, names: Sequence[str], known: Mapping[str, int]) -> StockChange:
    """A change that builds on the store which was not changed for longest; first each store is counted."""
    if len(known) < len(names):
        return StockChange(sentence=COUNTED, store=names[len(known)], sacks=rng.randint(60, 240))
    oldest = next(iter(known))
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
