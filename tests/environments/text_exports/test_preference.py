"""Pairs of answers to the very same prompt, of siblings, of different worth."""

from dataclasses import replace

import pytest

from environments.trajectory import TokenRow
from tests.environments.text_exports.exported import LOOK, group, lines_of, said, trajectory


def pairs(*trajectories, **fields):
    lines, _ = lines_of("preference", group(*trajectories, **fields))
    return [(line["chosen"][0]["content"], line["rejected"][0]["content"]) for line in lines]


def one(text, reward, **fields):
    return trajectory(said(text), rewards=(reward,), **fields)


def test_the_answer_of_the_highest_return_is_chosen_and_of_the_lowest_rejected():
    assert pairs(one("a", 0.5), one("b", 1.0), one("c", -1.0)) == [("b", "c")]


def test_the_return_is_that_from_the_turn_on_and_not_its_reward():
    long = trajectory(said("slow"), said("win"), rewards=(0.0, 5.0))
    assert pairs(one("quick", 1.0), long) == [("slow", "quick")]


def test_equal_answers_are_one_with_their_mean():
    assert pairs(one("a", 1.0), one("a", 0.0), one("b", 0.6)) == [("b", "a")]


@pytest.mark.parametrize(
    "others",
    [
        pytest.param([("b", 1.0)], id="equal returns"),
        pytest.param([("a", 0.0)], id="equal answers"),
        pytest.param([("b", 0.1 + 0.2 + 0.7)], id="a rounding apart"),
        pytest.param([("b", None)], id="not scored"),
    ],
)
def test_there_is_no_pair(others):
    assert pairs(one("a", 1.0), *(one(text, reward) for text, reward in others)) == []


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"prompt": "Come."}, id="message"),
        pytest.param({"tools": (replace(LOOK, description="See."),)}, id="tools"),
    ],
)
def test_turns_after_another_prompt_make_no_pair(other):
    assert pairs(one("a", 1.0), one("b", 0.0, **other)) == []


def test_equal_messages_that_were_other_tokens_make_no_pair():
    last = one("b", 0.0)
    assert pairs(one("a", 1.0), replace(last, rows=(TokenRow(token_ids=(9, 1, 2), logprobs=None),))) == []


def test_later_turns_pair_only_where_all_before_them_was_the_same():
    first = trajectory(said("a", '{"x": 1}'), said("b"), rewards=(0.0, 1.0))
    same = trajectory(said("a", '{"x": 1}'), said("c"), rewards=(0.0, 0.0))
    other = trajectory(said("a", '{"x":1}'), said("d"), rewards=(0.0, -1.0))
    assert pairs(first, same, other)[1:] == [("b", "c")]


def test_ids_that_a_server_drew_do_not_make_prompts_differ():
    first, second = (
        trajectory(said("a", "{}"), said(last), rewards=(0.0, worth))
        for last, worth in (("b", 1.0), ("c", 0.0))
    )
    call = replace(second.turns[0].message.tool_calls[0], id="drawn")
    result = replace(second.turns[0].tool_results[0], call_id="drawn")
    turn = replace(
        second.turns[0],
        message=replace(second.turns[0].message, tool_calls=(call,)),
        tool_results=(result,),
    )
    assert pairs(first, replace(second, turns=(turn, second.turns[1]))) == [("b", "c")]


def test_an_untrained_turn_is_in_no_pair():
    masked = one("b", 0.0)
    assert pairs(one("a", 1.0), replace(masked, turns=(replace(masked.turns[0], trained=False),))) == []


def test_what_gives_no_pair_is_counted():
    first = trajectory(said("a"), said("b"), rewards=(1.0, 0.0))
    _, notes = lines_of("preference", group(first, one("a", 1.0)))
    assert notes == {"prompts have no better and worse answer": 1, "turns have a prompt of their own": 1}


def test_a_line_says_whose_answers_they_are_and_what_they_are_worth():
    ((line,), _) = lines_of("preference", group(one("a", 0.25), one("b", 1.0)))
    assert (line["chosen_sibling"], line["rejected_sibling"]) == (1, 0)
    assert (line["chosen_return"], line["rejected_return"]) == (1.0, 0.25)
