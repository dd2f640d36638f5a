"""Second models: what a server is asked, what becomes of each answer, and what is asked once."""

import asyncio

import pytest

from environments.policy import second_models
from environments.policy.inference.dialect import RefusedSettingError
from environments.policy.second_models import LONGEST_ANSWER, AnswerCache, TextAnswer
from environments.trajectory import Message
from tests.environments.policy.chat_server import failed
from tests.environments.policy.text_server import QUESTION, answering, said, text_model
from tests.tables import cases
from tools.errors import ConfigError, SecondModelError


async def test_it_asks_for_text_and_for_no_tokens():
    async with answering(said("fine"), extra_body={"top_k": 5}) as (server, model):
        await model.answer(QUESTION, seed=7)
    assert server.asked == [
        {
            "model": "m", "messages": [{"role": "user", "content": "Good?"}], "n": 1, "temperature": 0.0,
            "top_p": 1.0, "seed": 7, "max_tokens": 64, "top_k": 5,
        }
    ]  # fmt: skip


async def test_the_answer_has_its_text_and_what_it_cost():
    async with answering(said("fine", reasoning_content="hm")) as (_, model):
        assert await model.answer(QUESTION, seed=0) == TextAnswer(
            text="fine", usage={"prompt_tokens": 5, "completion_tokens": 3}
        )


def test_how_it_samples_is_what_shapes_it():
    sampling = text_model("http://x/v1", extra_body={"top_k": 5, "user": "me"}).sampling(3)
    assert sampling == {"temperature": 0.0, "top_p": 1.0, "top_k": 5, "max_tokens": 64, "seed": 3}


THOUGHTS = {
    "left in the text": "<think>Hm. {</think>\nfine",
    "begun in the prompt": "Hm.</think>\n\nfine",
    "quoted after a verdict": 'It is {"score": 0}, for it wrote </think>{"score": 1}',
    "quoted in a verdict": '{"reason": "it wrote </think>"}',
}


@pytest.mark.parametrize("text", THOUGHTS.values(), ids=THOUGHTS)
async def test_reasoning_that_a_server_leaves_in_the_text_is_no_part_of_the_answer(text):
    async with answering(said(text)) as (_, model):
        assert (await model.answer(QUESTION, seed=0)).text.strip() in ("fine", text)


PROBLEMS = {
    "empty": said("<think>I think</think>\n"),
    "empty ": said("", reasoning_content="I think"),
    "cut": said("It is", finish_reason="length"),
    "refused": said(None, refusal="I cannot"),
    "filtered": said("", finish_reason="content_filter"),
    "filtered ": failed(400, "blocked", code="content_filter"),
    "too_long": failed(400, "This model's maximum context length is 10 tokens"),
    "too_long ": failed(413, "Request Entity Too Large"),
}


@cases("problem", PROBLEMS)
async def test_what_is_wrong_with_an_answer_is_said(problem):
    async with answering(PROBLEMS[problem]) as (server, model):
        assert (await model.answer(QUESTION, seed=0)).problem == problem.strip()
    assert len(server.asked) == 1


async def test_one_question_that_is_invalid_where_another_was_answered_has_no_answer():
    async with answering(said("fine"), failed(400, "this prompt cannot be taken")) as (_, model):
        assert [(await model.answer(QUESTION, seed=0)).text for _ in range(2)] == ["fine", None]


async def test_a_very_long_answer_is_cut():
    async with answering(said("x" * 1_000_000)) as (_, model):
        answer = await model.answer(QUESTION, seed=0)
    assert (len(answer.text), answer.problem) == (LONGEST_ANSWER, "cut")


async def test_a_busy_server_is_asked_again():
    async with answering(failed(429), failed(503), said("fine")) as (server, model):
        assert (await model.answer(QUESTION, seed=0)).text == "fine"
    assert len(server.asked) == 3


LOST = {
    "busy for ever": failed(429),
    "no such model": failed(404, "no model m"),
    "no completion": failed(200, "x"),
    "a tool message": said("x", role="tool"),
}


@pytest.mark.parametrize("answer", LOST.values(), ids=LOST)
async def test_without_an_answer_the_error_names_the_role_and_the_server(answer):
    async with answering(answer, tries=2) as (server, model):
        with pytest.raises(SecondModelError) as caught:
            await model.answer(QUESTION, seed=0)
    assert str(caught.value).startswith(f"the judge's model, {server.base_url}/chat/completions: ")


async def test_a_field_that_a_server_refuses_is_left_out_from_then_on():
    refusal = failed(400, "Unrecognized request argument supplied: seed", param="seed")
    async with answering(refusal, said("fine")) as (server, model):
        await model.answer(QUESTION, seed=0)
        await model.answer(QUESTION, seed=0)
    assert ["seed" in asked for asked in server.asked] == [True, False, False]


async def test_a_temperature_that_a_server_refuses_names_the_setting_of_its_role():
    refusal = failed(400, "Unsupported value: 'temperature' does not support 0", param="temperature")
    async with answering(refusal, role="user") as (_, model):
        with pytest.raises(RefusedSettingError, match=r"set --user\.temperature to 1"):
            await model.answer(QUESTION, seed=0)


async def test_the_look_before_a_run_buys_nothing_and_names_the_models_that_are_there():
    async with answering(said("fine")) as (server, model):
        await model.check()
        model.model = "other"
        with pytest.raises(ConfigError, match=r"has no model 'other'; it has m"):
            await model.check()
    assert server.asked == []


# The answers of a judge are kept.


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
    monkeypatch.setattr(second_models, name, most)
    model = Model()
    model.may.set()
    cache = AnswerCache(asked=model)
    for text in ("a", "b", "a", "c", "a", "b"):
        await asked(cache, text)
    assert [text for text, _ in model.asked] == ["a", "b", "c", "b"]
