"""None"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.shipped.long_math.ledgers import (
    ABOVE,
    BELOW,
    BROUGHT,
    COUNTED,
    SOLD,
    STORES,
    StockChange,
    make_ledgers,
    parse_change,
    refuse_unreadable,
)
from tests.tables import cases
from tools.errors import DatasetError

MADE = {"facts": 24, "stores": 6}
LEDGERS = make_ledgers("train", seed=0, count=32, **MADE)


def stocks_of(ledger) -> dict[str, int]:
    """What a careful reader of all pages knows."""
    known: dict[str, int] = {}
    for page in ledger["pages"]:
        change = parse_change(page)
        known[change.store] = change.stock(known)
    return known


def test_the_first_ledgers_stay_when_more_are_made():
    assert make_ledgers("train", seed=0, count=5, **MADE) == LEDGERS[:5]


@cases("stores", [2, 6, len(STORES)])
@cases("facts", [12, 300])
def test_who_reads_all_pages_knows_the_answer(facts: int, stores: int):
    for ledger in make_ledgers("train", seed=3, count=3, facts=facts, stores=stores):
        known = stocks_of(ledger)
        assert sum(known.values()) == ledger["answer"]
        assert sorted(known) == sorted(ledger["stores"])


def test_each_ledger_builds_on_numbers_that_a_window_has_lost():
    for ledger in LEDGERS:
        set_on: dict[str, int] = {}
        far: list[int] = []
        for number, page in enumerate(ledger["pages"]):
            change = parse_change(page)
            far.append(number - set_on.get(change.other or change.store, number))
            set_on[change.store] = number
        assert max(far) >= 8  # pages; a window of 2,048 tokens holds as many


def test_the_last_pages_alone_never_give_the_answer():
    for ledger in LEDGERS:
        last = {parse_change(page).store for page in ledger["pages"][-4:]}
        assert last < set(ledger["stores"])


@cases(
    ("field", "value"),
    [("pages", []), ("pages", "one"), ("pages", [1]), ("stocks", [1]), ("stocks", ["1"] * 24),
     ("answer", "12"), ("answer", None), ("stores", "mill"), ("id", 7)],
    ids=["no_pages", "text", "page", "few", "stock", "answer", "none", "stores", "id"],
)  # fmt: skip
def test_what_is_no_ledger_is_refused(field: str, value: object):
    with pytest.raises(DatasetError):
        refuse_unreadable([{**LEDGERS[0], field: value}])


STORE = st.sampled_from(STORES)
SACKS = st.integers(0, 999_999)
CHANGE = st.one_of(
    st.builds(StockChange, sentence=st.sampled_from([COUNTED, BROUGHT, SOLD]), store=STORE, sacks=SACKS),
    st.builds(StockChange, sentence=st.sampled_from([ABOVE, BELOW]), store=STORE, sacks=SACKS, other=STORE),
)


@given(CHANGE)
def test_a_fact_is_read_back_as_it_is_written(change: StockChange):
    assert parse_change(f"It rained. {change.text} The clerk bought 12 quills.") == change


@cases(
    ("sentence", "other", "stock"),
    [(COUNTED, None, 7), (BROUGHT, None, 107), (SOLD, None, 93), (ABOVE, "quay", 57), (BELOW, "quay", 43)],
)
def test_a_stock_follows_from_what_is_known(sentence: str, other: str | None, stock: int):
    change = StockChange(sentence=sentence, store="mill", sacks=7, other=other)
    assert change.stock({"mill": 100, "quay": 50}) == stock


@cases("sentence", [BROUGHT, ABOVE], ids=["brought", "above"])
def test_what_builds_on_a_number_that_is_not_known_is_not_known(sentence: str):
    other = "quay" if sentence == ABOVE else None
    change = StockChange(sentence=sentence, store="mill", sacks=7, other=other)
    assert change.stock({"barn": 1}) is None
