import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.long_math_env.ledgers import (
    ABOVE,
    BELOW,
    BROUGHT,
    COUNTED,
    SOLD,
    STORES,
    StockChange,
    change_in,
)
from tests.tables import cases

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


@pytest.mark.parametrize("sentence", [BROUGHT, ABOVE], ids=["brought", "above"])
def test_what_builds_on_a_number_that_is_not_known_is_not_known(sentence: str):
    other = "quay" if sentence == ABOVE else None
    change = StockChange(sentence=sentence, store="mill", sacks=7, other=other)
    assert change.stock({"barn": 1}) is None
