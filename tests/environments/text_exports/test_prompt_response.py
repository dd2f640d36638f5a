"""Every turn as a prompt, a completion, and what it was worth."""

from dataclasses import replace

import orjson
import pytest

from environments.trajectory import Kept, Message
from tests.environments.text_exports.exported import LOOK, group, lines_of, said, trajectory


def lines(*groups):
    return lines_of("prompt_response", *groups)[0]


def contents(messages):
    return [message["content"] for message in messages]


def test_a_turns_prompt_is_all_before_it_and_its_completion_its_own_message():
    first, second = lines(group(trajectory(said("a", '{"x": 1}'), said("b"), rewards=(0.25, None))))
    assert (contents(first["prompt"]), contents(first["completion"])) == (["Be.", "Go."], ["a"])
    assert contents(second["prompt"]) == ["Be.", "Go.", "a", "result 0"]
    assert contents(second["completion"]) == ["b"]


def test_a_condensed_prompt_is_what_the_model_saw():
    whole = trajectory(said("a"), said("b"), rewards=(0.0, 1.0))
    summary = Message(role="user", content="In short: a.")
    last = replace(whole.turns[1], context=(Kept(start=0, end=1), summary))
    (_, second) = lines(group(replace(whole, turns=(whole.turns[0], last))))
    assert contents(second["prompt"]) == ["Be.", "In short: a."]


def test_arguments_are_an_object_and_tools_a_json_text():
    (line,) = lines(group(trajectory(said("", '{"x": 1}'), rewards=(1.0,))))
    assert line["completion"][0]["tool_calls"][0]["function"]["arguments"] == {"x": 1}
    assert orjson.loads(line["tools"]) == [LOOK.to_openai()]


def test_without_tools_the_text_is_null():
    assert lines(group(trajectory(said("a"), rewards=(1.0,), tools=())))[0]["tools"] == "null"


def test_groups_whose_calls_have_no_tools_are_counted_once():
    called = trajectory(said("", "{}"), said("", "{"), rewards=(1.0, 1.0), tools=())
    _, notes = lines_of("prompt_response", group(called, called))
    assert notes["groups have no tools recorded"] == 1


def test_calls_that_stay_text_are_counted_once_however_many_lines_hold_them():
    _, notes = lines_of("prompt_response", group(trajectory(said("", "{"), said("b"), rewards=(1.0, 1.0))))
    assert notes["tool calls keep their arguments as text"] == 1


@pytest.mark.parametrize(
    ("params", "returns"),
    [
        pytest.param({}, [1.0 + 4.0, 4.0], id="nothing recorded"),
        pytest.param({"gamma": 0.5}, [1.0 + 0.5 * 4.0, 4.0], id="gamma"),
        pytest.param({"outcome_weight": 0.5}, [1.0 + 2.0, 2.0], id="outcome weight"),
    ],
)
def test_a_return_is_that_of_the_recorded_parameters(params, returns):
    whole = trajectory(said("a"), said("b"), rewards=(1.0, None), outcome=4.0)
    assert [line["return"] for line in lines(group(whole, estimator_params=params))] == returns


def test_what_was_not_scored_is_null_and_never_0():
    whole = trajectory(said("a"), said("b"), rewards=(1.0, None))
    first, second = lines(group(whole))
    assert (first["return"], first["outcome"]) == (1.0, None)
    assert (second["reward"], second["return"]) == (None, None)


def test_in_a_scalar_environment_every_turn_has_the_score_as_its_return():
    whole = trajectory(said("a"), said("b"), rewards=None, outcome=2.0)
    assert [(line["reward"], line["return"], line["score"]) for line in lines(group(whole))] == [
        (None, 2.0, 2.0)
    ] * 2


def test_a_summary_has_the_return_of_the_act_that_follows_it():
    whole = trajectory(said("a"), said("sum"), said("b"), said("end"), rewards=(1.0, None, 2.0, None))
    kinds = ("act", "summary", "act", "summary")
    turns = tuple(replace(turn, kind=kind) for turn, kind in zip(whole.turns, kinds, strict=True))
    shown = lines(group(replace(whole, turns=turns), estimator_params={"gamma": 0.5}))
    assert [line["return"] for line in shown] == [2.0, 2.0, 2.0, None]


def test_untrained_turns_are_there_and_say_so():
    whole = trajectory(said("a"), rewards=(1.0,))
    masked = replace(whole, turns=(replace(whole.turns[0], trained=False),))
    assert lines(group(masked))[0]["trained"] is False
