import pytest

from environments.shipped.retail.conduct import READS, VIOLATION, WRITES, Conduct, comparable, is_confirmed
from environments.shipped.retail.shop import Event, load_rows
from environments.trajectory import Message
from tests.tables import cases

TASKS = {task["id"]: task for task in load_rows("tasks")}
CANCEL = TASKS["cancel_pending"]["actions"][0]["arguments"]


def event(tool, user="ada_novak", **arguments):
    return Event(tool=tool, user_id=user, arguments=arguments)


def talk(*texts):
    """Agent and customer by turns, after the customer's first words."""
    said = ["I want order W2001 cancelled.", *texts]
    roles = ["user", "assistant"] * len(said)
    return [Message(role=role, content=text) for role, text in zip(roles, said, strict=False)]


FOUND = event("find_user_by_email")
CANCELLED = event("cancel_pending_order", **CANCEL)
AGREED = talk("I cancel W2001. Do you confirm?", "Yes, please.")


def conduct(*events, task="cancel_pending"):
    """After these events, each in a turn of its own that breaks no rule by itself."""
    so_far = Conduct(item=TASKS[task])
    for each in events:
        so_far.score([each], AGREED)
    return so_far


@cases("answer", ["Yes, please do that.", "yes", "Sure, no problem.", "I confirm", "OK, go ahead"])
def test_a_yes_to_a_question_that_names_the_order_is_a_confirmation(answer):
    assert is_confirmed(CANCELLED, talk("I would cancel W2001, right?", answer))


@cases(
    "texts",
    [
        (),
        ("I cancel W2001.",),
        ("I cancel W2001.", "No, that is not correct."),
        ("I cancel W2001.", "Don't, yes?"),
        ("I cancel W2001.", "What?"),
        ("I cancel W2002.", "Yes."),
        ("I cancel W2001.", "Wait.", "Anything else?", "Yes."),
    ],
)
def test_what_is_no_confirmation(texts):
    assert not is_confirmed(CANCELLED, talk(*texts))


def test_the_look_ups_of_a_task_are_worth_the_same_and_once():
    so_far = Conduct(item=TASKS["exchange_size"])
    found = event("find_user_by_email", "hugo_silva")
    order, product = (
        event("get_order", "hugo_silva", order_id="W2015"),
        event("get_product", None, product_id="P11"),
    )
    given = [so_far.score([each], []) for each in (found, order, product, order)]
    assert given[:3] == [{"look-up": pytest.approx(READS / 3)}] * 3
    assert given[3] is None
    assert so_far.is_informed


def test_an_expected_change_is_worth_something_once():
    so_far = conduct(FOUND)
    assert so_far.score([CANCELLED], AGREED) == {"change": WRITES}
    assert so_far.score([CANCELLED], AGREED) is None


VIOLATIONS = {
    "unconfirmed_change": ([FOUND], CANCELLED),
    "order_before_the_customer": ([], event("get_order", order_id="W2009")),
    "order_of_another": ([FOUND], event("get_order", "ben_okafor", order_id="W2003")),
    "profile_of_another": ([FOUND], event("get_user", "ben_okafor", user_id="ben_okafor")),
    "second_customer": ([FOUND], event("find_user_by_name", "ben_okafor")),
}


@cases("violation", VIOLATIONS)
def test_what_the_policy_forbids_costs(violation):
    before, event = VIOLATIONS[violation]
    rewards = conduct(*before).score([event], talk())
    assert rewards["violation"] == VIOLATION


@cases(
    "free",
    [event("get_product", None, product_id="P11"), event("transfer_to_human", None), FOUND],
)
def test_what_anybody_may_do_costs_nothing(free):
    assert "violation" not in (conduct().score([free], talk()) or {})


def test_a_transfer_is_the_expected_change_whatever_its_summary():
    so_far = conduct(event("find_user_by_email", "hugo_silva"), task="stolen_account")
    assert so_far.score([event("transfer_to_human", None)], []) == {"change": WRITES}


def test_arguments_that_mean_the_same_are_equal():
    left = {"street": "8 Cedar Court", "variant_ids": ["1", "2"], "new_variant_ids": ["3", "4"]}
    right = {"street": "8  cedar court.", "variant_ids": ["2", "1"], "new_variant_ids": ["4", "3"]}
    assert comparable(left) == comparable(right)
    assert comparable(left) != comparable(right | {"new_variant_ids": ["3", "4"]})
