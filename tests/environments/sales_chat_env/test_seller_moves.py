import pytest

from environments.sales_chat_env.customer import READ_CHARS, TOPICS, move_of
from tests.tables import cases


@pytest.mark.parametrize("text", ["Want to buy it?", "ORDER NOW", "bye, or do you buy?", "It is soft. Buy!"])
def test_a_word_that_asks_for_the_sale_makes_a_pitch(text: str):
    assert move_of(text).kind == "pitch"


@pytest.mark.parametrize("text", ["Goodbye.", "bye bye", "It is soft; farewell"])
def test_a_word_of_parting_is_a_goodbye(text: str):
    assert move_of(text).kind == "goodbye"


@cases("text", ["", " \n", "buyer", "\ud800", "買う", "🙂", "1234", "a" * 9])
def test_all_else_is_chat_about_nothing(text: str):
    move = move_of(text)
    assert (move.kind, move.topic) == ("chat", None)


@pytest.mark.parametrize("topic", sorted(TOPICS))
def test_telling_words_name_their_topic(topic: str):
    assert all(move_of(f"It is so {word}!").topic == topic for word in TOPICS[topic])


def test_no_word_tells_of_two_topics():
    words = [word for telling in TOPICS.values() for word in telling]
    assert len(set(words)) == len(words)


def test_of_several_topics_the_one_spoken_of_most_counts():
    assert move_of("Soft and light, and it lasts.").topic == "comfort"


def test_naming_every_topic_names_none():
    assert move_of(" ".join(word for telling in TOPICS.values() for word in telling)).topic is None
    assert move_of("comfort durability looks").topic is None


def test_nobody_reads_on_in_a_long_message():
    assert move_of("x" * READ_CHARS + " buy").kind == "chat"
