"""None"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.policy.rendering.chatml import ChatMLRenderer
from environments.shipped.long_math.ledgers import (
    ABOVE,
    BELOW,
    BROUGHT,
    COUNTED,
    FIELDS,
    SOLD,
    STORES,
    StockChange,
    change_in,
    made_ledgers,
    refuse_unreadable,
)
from environments.trajectory import Message
from tests.tables import cases
from tools.errors import DatasetError

MADE = {"facts": 24, "stores": 6}
LEDGERS = made_ledgers("train", seed=0, count=32, **MADE)


def stocks_of(ledger) -> dict[str, int]:
    """What a careful reader of all pages knows."""
    known: dict[str, int] = {}
    for page in ledger["pages"]:
        change = change_in(page)
        known[change.store] = change.stock(known)
    return known


def test_the_same_seed_gives_the_same_ledgers():
    assert made_ledgers("train", seed=0, count=32, **MADE) == LEDGERS


def test_the_first_ledgers_stay_when_more_are_made():
    assert made_ledgers("train", seed=0, count=5, **MADE) == LEDGERS[:5]


def test_each_ledger_is_another():
    others = [
        *made_ledgers("eval", seed=0, count=32, **MADE),
        *made_ledgers("train", seed=1, count=32, **MADE),
    ]
    assert len({"\n".join(each["pages"]) for each in [*LEDGERS, *others]}) == 96


@cases("stores", [2, 6, len(STORES)])
@cases("facts", [12, 300])
def test_who_reads_all_pages_knows_the_answer(facts: int, stores: int):
    for ledger in made_ledgers("train", seed=3, count=3, facts=facts, stores=stores):
        known = stocks_of(ledger)
        assert sum(known.values()) == ledger["answer"]
        assert sorted(known) == sorted(ledger["stores"])


def test_the_stocks_are_those_of_each_page():
    for ledger in LEDGERS:
        known: dict[str, int] = {}
        for page, stock in zip(ledger["pages"], ledger["stocks"], strict=True):
            change = change_in(page)
            known[change.store] = change.stock(known)
            assert known[change.store] == stock


def test_a_page_holds_one_fact():
    for page in (page for ledger in LEDGERS for page in ledger["pages"]):
        assert change_in(page.replace(change_in(page).text, "")) is None


def test_each_ledger_builds_on_numbers_that_a_window_has_lost():
    for ledger in LEDGERS:
        set_on: dict[str, int] = {}
        far: list[int] = []
        for number, page in enumerate(ledger["pages"]):
            change = change_in(page)
            far.append(number - set_on.get(change.other or change.store, number))
            set_on[change.store] = number
        assert max(far) >= 8  # pages; a window of 2,048 tokens holds as many


def test_the_last_pages_alone_never_give_the_answer():
    for ledger in LEDGERS:
        last = {change_in(page).store for page in ledger["pages"][-4:]}
        assert last < set(ledger["stores"])


def test_a_page_is_of_the_length_that_fills_a_window_in_a_dozen_calls():
    renderer = ChatMLRenderer.embedded()
    for page in (page for ledger in LEDGERS[:4] for page in ledger["pages"]):
        message = Message(role="user", content=page)
        assert 80 <= len(renderer.completion_ids(message)) <= 160


@cases(
    ("field", "value"),
    [("pages", []), ("pages", "one"), ("pages", [1]), ("stocks", [1]), ("stocks", ["1"] * 24),
     ("answer", "12"), ("answer", None), ("stores", "mill"), ("id", 7)],
    ids=["no_pages", "text", "page", "few", "stock", "answer", "none", "stores", "id"],
)  # fmt: skip
def test_what_is_no_ledger_is_refused(field: str, value: object):
    with pytest.raises(DatasetError):
        refuse_unreadable([{**LEDGERS[0], field: value}])


def test_a_made_ledger_is_one_that_a_dataset_may_hold():
    assert set(LEDGERS[0]) == set(FIELDS)
    refuse_unreadable(LEDGERS)


STORE = st.sampled_from(STORES)
SACKS = st.integers(0, 999_999)
CHANGE = st.one_of(
    st.builds(StockChange, sentence=st.sampled_from([COUNTED, BROUGHT, SOLD]), store=STORE, sacks=SACKS),
    st.builds(StockChange, sentence=st.sampled_from([ABOVE, BELOW]), store=STORE, sacks=SACKS, other=STORE),
)


@given(CHANGE)
def test_a_fact_is_read_back_as_it_is_written(change: StockChange):
    assert change_in(f"It rained. {change.text} The clerk bought 12 quills.") == change


@given(CHANGE, CHANGE)
def test_of_two_facts_the_first_is_read(first: StockChange, second: StockChange):
    assert change_in(f"{first.text} {second.text}") == first


def test_a_text_without_a_fact_has_none():
    assert change_in("The roof of the mill was mended for 12 pence, and 3 sacks were torn.") is None


@cases(
    ("sentence", "other", "stock"),
    [(COUNTED, None, 7), (BROUGHT, None, 107), (SOLD, None, 93), (ABOVE, "quay", 57), (BELOW, "quay", 43)],
    ids=["counted", "brought", "sold", "above", "below"],
)
def test_a_stock_follows_from_what_is_known(sentence: str, other: str | None, stock: int):
    change = StockChange(sentence=sentence, store="mill", sacks=7, other=other)
    assert change.stock({"mill": 100, "quay": 50}) == stock


@cases("sentence", [BROUGHT, ABOVE], ids=["brought", "above"])
def test_what_builds_on_a_number_that_is_not_known_is_not_known(sentence: str):
    other = "quay" if sentence == ABOVE else None
    change = StockChange(sentence=sentence, store="mill", sacks=7, other=other)
    assert change.stock({"barn": 1}) is None
