import pytest

from environments.retail_env.shop import cents, money, states
from tests.tables import cases


@pytest.mark.parametrize(("text", "amount"), [("12.50", 1250), ("0.07", 7), ("-3.00", -300)])
def test_amounts_are_whole_cents(text, amount):
    assert (cents(text), money(amount)) == (amount, text)


@cases("message", ["It is 12.00.", "£12, please", "12.0", "(12.00)", "Of W2006 12.00 come back", "-12.00"])
def test_an_amount_is_stated_in_any_spelling(message):
    assert states(message, "12.00")


@cases("message", ["", "112.00", "12.001", "1,200", "W12", "about 13", "12.00.1", "9" * 100_000])
def test_another_number_does_not_state_it(message):
    assert not states(message, "12.00")


def test_an_agent_that_tries_out_all_numbers_has_answered_nothing():
    assert not states(" ".join(map(str, range(1000))), "12.00")
