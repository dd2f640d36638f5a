"""The customer is the market of docs/credit.md, on which the bias of estimators is measured."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from environments.shipped.sales_chat.env import (
    CONVERTS,
    SILENT,
    TOPICS,
    UPVOTE,
    WARMS_UP,
    Customer,
    SellerMove,
    parse_move,
)
from tests.tables import cases

MANY = 4_000
PITCH, GOODBYE = SellerMove(kind="pitch"), SellerMove(kind="goodbye")
ON_TOPIC, OFF_TOPIC = SellerMove(kind="chat", topic="looks"), SellerMove(kind="chat", topic="comfort")


def customers(mood: int = 0) -> list[Customer]:
    return [Customer(mood=mood, taste="looks", chances=random.Random(seed)) for seed in range(MANY)]


def answered(move: SellerMove, mood: int = 0) -> list[Customer]:
    met = customers(mood)
    for customer in met:
        customer.answer(move)
    return met


def share(met: list[Customer], of) -> float:
    return sum(map(of, met)) / len(met)


@cases("mood", range(3))
def test_a_pitch_sells_as_often_as_the_mood_says(mood: int):
    met = answered(PITCH, mood)
    assert share(met, lambda customer: customer.end == "sold") == pytest.approx(CONVERTS[mood], abs=0.03)
    assert {(customer.vote, customer.end is None) for customer in met} == {(0.0, False)}


@cases("mood", range(3))
def test_talk_of_what_matters_warms_up_as_often_as_the_mood_says(mood: int):
    warmer = share(answered(ON_TOPIC, mood), lambda customer: customer.mood == mood + 1)
    assert warmer == pytest.approx(WARMS_UP[mood], abs=0.03)


@cases(("move", "vote"), [(ON_TOPIC, UPVOTE), (OFF_TOPIC, 0.0)], ids=["on", "off"])
def test_a_vote_is_for_what_matters_and_now_and_then_there_is_none(move: SellerMove, vote: float):
    votes = Counter(customer.vote for customer in answered(move))
    assert set(votes) == {vote, None}
    assert votes[None] / MANY == pytest.approx(SILENT, abs=0.03)


def test_siblings_meet_the_same_customer():
    def met(seed: int, group_seed: int) -> Customer:
        return replace(Customer.arrive(seed=seed, group_seed=group_seed), chances=random.Random(0))

    assert all(met(seed, 5).opening == met(0, 5).opening for seed in range(9))
    assert len({met(0, group_seed).opening for group_seed in range(99)}) == 9


@cases("text", ["Want to buy it?", "ORDER NOW", "bye, or do you buy?", "It is soft. Buy!"])
def test_a_word_that_asks_for_the_sale_makes_a_pitch(text: str):
    assert parse_move(text).kind == "pitch"


@cases("text", ["Goodbye.", "bye bye", "It is soft; farewell"])
def test_a_word_of_parting_is_a_goodbye(text: str):
    assert parse_move(text).kind == "goodbye"


@cases("text", ["", " \n", "buyer", "\ud800", "買う", "🙂", "1234", "a" * 9])
def test_all_else_is_chat_about_nothing(text: str):
    move = parse_move(text)
    assert (move.kind, move.topic) == ("chat", None)


@cases("topic", sorted(TOPICS))
def test_telling_words_name_their_topic(topic: str):
    assert all(parse_move(f"It is so {word}!").topic == topic for word in TOPICS[topic])


def test_of_several_topics_the_one_spoken_of_most_counts():
    assert parse_move("Soft and light, and it lasts.").topic == "comfort"
