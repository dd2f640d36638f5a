"""Equal questions are asked once, whoever asks them, and nobody pays for another's end."""

import asyncio

import pytest

from environments.policy.second_models import asked_model
from environments.policy.second_models.asked_model import AnswerCache
from environments.policy.second_models.text_model import TextAnswer
from environments.trajectory import Message
from tools.errors import SecondModelError


class Model:
    """Answers once it is allowed to."""

    model = "m"

    def __init__(self, error=None):
        self.asked = []
        self.began, self.may = asyncio.Event(), asyncio.Event()
        self.error = error

    def sampling(self, seed):
        return {"seed": seed}

    async def answer(self, messages, *, seed):
        self.asked.append((messages[0].content, seed))
        self.began.set()
        await self.may.wait()
        if self.error is not None:
            raise self.error
        return TextAnswer(text=f"{messages[0].content} {seed}", usage={"completion_tokens": 1})


def question(text):
    return (Message(role="user", content=text),)


async def asked(cache, text, seed=0):
    return await cache.answer(question(text), seed=seed)


async def test_equal_questions_in_flight_are_one_and_one_pays():
    model = Model()
    cache = AnswerCache(asked=model)
    both = asyncio.gather(asked(cache, "a"), asked(cache, "a"))
    await model.began.wait()
    model.may.set()
    assert [(answer.text, dict(answer.usage)) for answer in await both] == [
        ("a 0", {"completion_tokens": 1}),
        ("a 0", {}),
    ]
    assert (await asked(cache, "a")).usage == {}
    assert len(model.asked) == 1


async def test_another_seed_is_another_question():
    model = Model()
    model.may.set()
    cache = AnswerCache(asked=model)
    assert [(await asked(cache, "a", seed)).text for seed in (0, 1)] == ["a 0", "a 1"]


async def test_whoever_asks_first_may_be_cancelled_while_others_wait():
    model = Model()
    cache = AnswerCache(asked=model)
    first, second = (asyncio.create_task(asked(cache, "a")) for _ in range(2))
    await model.began.wait()
    first.cancel()
    await asyncio.wait({first})
    model.may.set()
    assert (await second).text == "a 0"
    assert len(model.asked) == 1


async def test_when_nobody_waits_any_more_the_question_is_dropped_and_may_be_asked_again():
    model = Model()
    cache = AnswerCache(asked=model)
    only = asyncio.create_task(asked(cache, "a"))
    await model.began.wait()
    only.cancel()
    await asyncio.wait({only})
    model.may.set()
    assert (await asked(cache, "a")).text == "a 0"
    assert len(model.asked) == 2


async def test_a_failure_reaches_all_who_wait_each_with_its_own_error_and_is_not_kept():
    model = Model(error=SecondModelError("gone"))
    cache = AnswerCache(asked=model)
    both = asyncio.gather(asked(cache, "a"), asked(cache, "a"), return_exceptions=True)
    await model.began.wait()
    model.may.set()
    errors = await both
    assert [str(error) for error in errors] == ["gone", "gone"]
    assert errors[0] is not errors[1]
    model.error = None
    assert (await asked(cache, "a")).text == "a 0"


@pytest.mark.parametrize(("name", "most"), [("_MOST_ANSWERS", 2), ("_MOST_CHARS", 6)])
async def test_what_was_not_used_for_longest_is_forgotten(monkeypatch, name, most):
    monkeypatch.setattr(asked_model, name, most)
    model = Model()
    model.may.set()
    cache = AnswerCache(asked=model)
    for text in ("a", "b", "a", "c", "a", "b"):
        await asked(cache, text)
    assert [text for text, _ in model.asked] == ["a", "b", "c", "b"]
