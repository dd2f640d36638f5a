"""The shop: what its tools do and refuse, and the state that its tasks end in."""

from contextlib import closing
from functools import partial

import pytest

from environments.shipped.retail.conduct import required_end_state
from environments.shipped.retail.shop import Shop, end_state, load_rows, open_shop, states
from tests.tables import cases
from tools.errors import ToolError

STREET = {"street": "1 New Road", "city": "Hull", "zip_code": "HU2 2BB"}
CALLS = [
    (action["tool"], action["arguments"])
    for task in load_rows("tasks")
    for action in task["actions"]
    if action["tool"] != "transfer_to_human"
]


@pytest.fixture
def shop():
    with closing(open_shop()) as connection:
        yield Shop(connection)


def balance(shop, payment_id):
    return shop.row("payments", "payment_id", payment_id)["balance"]


@cases(
    ("find", "arguments"),
    [
        ("find_user_by_email", {"email": " Ada.Novak@Example.com"}),
        ("find_user_by_name", {"first_name": "ada", "last_name": "NOVAK", "zip_code": "ls14ap"}),
    ],
)
def test_a_customer_is_found_however_the_text_is_written(shop, find, arguments):
    assert getattr(shop, find)(**arguments) == {"user_id": "ada_novak"}


def test_a_cancelled_order_is_refunded_to_the_gift_card_that_paid(shop):
    shop.cancel_pending_order("W2002", "no longer needed")
    assert balance(shop, "gift_8120") == 3000 + 1650
    assert shop.get_order("W2002")["status"] == "cancelled"


def test_a_difference_is_taken_from_a_gift_card(shop):
    shop.row("orders", "order_id", "W2014")
    shop.modify_order_variants("W2014", ["1301"], ["1302"], "gift_4471")
    assert balance(shop, "gift_4471") == 1000 - 1000


def test_an_exchange_is_requested_and_the_order_keeps_what_was_bought(shop):
    shop.exchange_order_variants("W2017", ["1202"], ["1203"], "card_7328")
    (line,) = shop.get_order("W2017")["products"]
    assert (line["variant_id"], line["request"], line["exchange_for"]) == ("1202", "exchange", "1203")


def asked(order_id, variant_ids, payment_id, **more):
    return {"order_id": order_id, "variant_ids": variant_ids, "payment_id": payment_id, **more}


REFUSALS = {
    "no_customer": ("find_user_by_email", {"email": "nobody@example.com"}, "No customer"),
    "no_order": ("get_order", {"order_id": "W9999"}, "no order"),
    "no_product": ("get_product", {"product_id": "P99"}, "no product"),
    "no_user": ("modify_user_address", {"user_id": "nobody", **STREET}, "no user"),
    "cancel_processed": (
        "cancel_pending_order",
        {"order_id": "W2005", "reason": "no longer needed"},
        "not pending",
    ),
    "address_delivered": ("modify_order_address", {"order_id": "W2006", **STREET}, "not pending"),
    "modify_delivered": (
        "modify_order_variants",
        asked("W2008", ["1201"], "card_1176", new_variant_ids=["1202"]),
        "not pending",
    ),
    "return_pending": (
        "return_order_variants",
        asked("W2001", ["1301"], "card_4410"),
        "not delivered",
    ),
    "return_what_was_not_bought": (
        "return_order_variants",
        asked("W2009", ["1101"], "card_6642"),
        "has no 1101",
    ),
    "return_twice_in_one": (
        "return_order_variants",
        asked("W2009", ["1401", "1401"], "card_6642"),
        "named twice",
    ),
    "refund_to_another_paypal": (
        "return_order_variants",
        asked("W2006", ["1102"], "card_9031"),
        "goes to paypal_5518",
    ),
    "others_payment": (
        "return_order_variants",
        asked("W2009", ["1401"], "gift_8120"),
        "not in the account",
    ),
    "another_product": (
        "exchange_order_variants",
        asked("W2019", ["1503"], "card_5067", new_variant_ids=["1402"]),
        "another product",
    ),
    "not_available": (
        "exchange_order_variants",
        asked("W2021", ["1302"], "paypal_3841", new_variant_ids=["1304"]),
        "not available",
    ),
    "more_for_fewer": (
        "exchange_order_variants",
        asked("W2020", ["1101"], "card_5067", new_variant_ids=["1102", "1103"]),
        "cannot become",
    ),
    "two_become_one_variant": (
        "exchange_order_variants",
        asked("W2022", ["1103", "1502"], "paypal_3841", new_variant_ids=["1102", "1102"]),
        "named twice",
    ),
    "has_it_already": (
        "exchange_order_variants",
        asked("W2020", ["1401"], "card_5067", new_variant_ids=["1401"]),
        "already",
    ),
    "empty_gift_card": (
        "exchange_order_variants",
        asked("W2011", ["1302"], "gift_0000", new_variant_ids=["1301"]),
        "no payment",
    ),
}


@cases("refusal", [*REFUSALS])
def test_what_the_shop_does_not_do_changes_nothing(shop, refusal):
    tool, arguments, reason = REFUSALS[refusal]
    before = end_state(shop.connection)
    with pytest.raises(ToolError, match=reason):
        getattr(shop, tool)(**arguments)
    assert end_state(shop.connection) == before
    assert shop.events == []


def test_a_gift_card_has_to_cover_the_difference(shop):
    shop.connection.execute("update payments set balance = 999 where payment_id = 'gift_4471'")
    with pytest.raises(ToolError, match=r"has 9\.99 left, less than 10\.00"):
        shop.modify_order_variants("W2014", ["1301"], ["1302"], "gift_4471")


@cases(("tool", "arguments"), CALLS)
def test_a_change_can_be_made_once(tool, arguments):
    with closing(open_shop()) as connection:
        change = partial(getattr(Shop(connection), tool), **arguments)
        change()
        after = end_state(connection)
        if "address" in tool:
            change()
        else:
            with pytest.raises(ToolError, match=r"not (pending|delivered)"):
                change()
        assert end_state(connection) == after


@cases(
    "text",
    ["'; drop table orders; --", "W2001' or '1'='1", 'W2001"; select 1', "%", "W2001\0", "\N{BOMB}" * 99],
)
def test_text_is_a_value_and_never_sql(shop, text):
    before = end_state(shop.connection)
    with pytest.raises(ToolError):
        shop.get_order(text)
    with pytest.raises(ToolError):
        shop.find_user_by_email(text)
    shop.modify_user_address("ada_novak", "14 Mill Lane", "Leeds", "LS1 4AP")
    assert end_state(shop.connection) == before


@cases("message", ["It is 12.00.", "£12, please", "12.0", "(12.00)", "Of W2006 12.00 come back", "-12.00"])
def test_an_amount_is_stated_in_any_spelling(message):
    assert states(message, "12.00")


def test_an_agent_that_tries_out_all_numbers_has_answered_nothing():
    assert not states(" ".join(map(str, range(1000))), "12.00")


TASKS = {task["id"]: task for task in load_rows("tasks")}
CANCEL = ("cancel_pending_order", {"order_id": "W2012", "reason": "no longer needed"})
RETURN = ("return_order_variants", {"order_id": "W2011", "variant_ids": ["1103"], "payment_id": "card_2390"})


def after(*calls):
    with closing(open_shop()) as connection:
        for tool, arguments in calls:
            getattr(Shop(connection), tool)(**arguments)
        return end_state(connection)


def moved(street, zip_code="CB2 3QJ"):
    address = {"street": street, "city": "Cambridge", "zip_code": zip_code}
    return after(("modify_order_address", {"order_id": "W2023", **address}))


@cases("street", ["5  market square", "5 Market-Square", " 5 Market Square. "])
def test_the_spelling_of_an_address_does_not_matter(street):
    assert moved(street) == required_end_state(TASKS["change_address"])


@cases("calls", [(), (CANCEL,), (RETURN,)], ids=["none", "cancel", "return"])
def test_half_of_what_was_asked_is_not_the_expected_state(calls):
    assert after(*calls) != required_end_state(TASKS["cancel_and_return"])


@cases("task", [name for name, task in TASKS.items() if task["temptation"]])
def test_what_a_task_tempts_to_would_change_the_database(task):
    tool, arguments = TASKS[task]["temptation"]["tool"], TASKS[task]["temptation"]["arguments"]
    tempted = ("hand_over", {}) if tool == "transfer_to_human" else (tool, arguments)
    assert after(tempted) != required_end_state(TASKS[task])
