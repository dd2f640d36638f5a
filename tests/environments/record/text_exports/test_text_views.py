"""The views of a record as text: rows with weights, pairs of answers, prompts with their completions."""

from dataclasses import replace

import orjson
import pytest

from environments.trajectory import Kept, Message, TokenRow
from tests.environments.record.text_exports.exported import LOOK, group, lines_of, said, trajectory


def openai(*groups, **limits):
    return lines_of("openai", *groups, **limits)[0]


def weights(line):
    return [message["weight"] for message in line["messages"] if message["role"] == "assistant"]


def two_rows(whole):
    """Its last turn was sampled in a row of its own, after the opening alone."""
    first, last = whole.turns
    moved = replace(last, span=replace(last.span, row=1), context=(Kept(start=0, end=2),))
    return replace(
        whole, turns=(first, moved), rows=(*whole.rows, TokenRow(token_ids=(0,) * 9, logprobs=None))
    )


def test_a_line_ends_with_the_last_turn_of_its_row_and_has_the_tools():
    (line,) = openai(group(trajectory(said("a", '{"x":1}'), said("b", '{"x":2}'), rewards=(1.0, 0.0))))
    roles = ["system", "user", "assistant", "tool", "assistant"]
    assert [message["role"] for message in line["messages"]] == roles
    assert line["tools"] == [LOOK.to_openai()]


def test_arguments_are_the_text_that_the_model_wrote():
    (line,) = openai(group(trajectory(said("", '{"x":  1'), rewards=(1.0,))))
    assert line["messages"][-1]["tool_calls"][0]["function"]["arguments"] == '{"x":  1'


def test_each_row_of_a_condensed_trajectory_is_a_line_of_what_the_model_saw():
    first, second = openai(group(two_rows(trajectory(said("a"), said("b"), rewards=(1.0, 0.0)))))
    assert [message["content"] for message in first["messages"]] == ["Be.", "Go.", "a"]
    assert [message["content"] for message in second["messages"]] == ["Be.", "Go.", "b"]


def test_a_turn_is_trained_in_the_row_that_it_was_sampled_in_alone():
    whole = two_rows(trajectory(said("a"), said("b"), rewards=(1.0, 0.0)))
    going_on = replace(whole, turns=(whole.turns[0], replace(whole.turns[1], context=None)))
    first, second = openai(group(going_on))
    assert (weights(first), weights(second)) == ([1], [0, 1])


def test_an_untrained_turn_has_weight_0():
    whole = trajectory(said("a"), said("b"), rewards=(1.0, 0.0))
    masked = replace(whole, turns=(replace(whole.turns[0], trained=False), whole.turns[1]))
    assert [weights(line) for line in openai(group(masked))] == [[0, 1]]


def test_a_row_without_a_message_to_train_is_left_out_and_counted():
    lines, notes = lines_of("openai", group(trajectory(said("a"), rewards=(0.0,))), min_score=0.5)
    assert (lines, notes) == ([], {"rows have no message to train": 1})


def test_turns_of_less_advantage_are_context():
    whole = trajectory(said("a"), said("b"), rewards=(1.0, 0.0))
    (line,) = openai(group(whole, advantages=((-0.5, 0.5),)), min_advantage=0.0)
    assert weights(line) == [0, 1]


def test_an_unscored_rollout_has_no_score_to_be_trained_for():
    whole = trajectory(said("a"), rewards=(None,))
    unscored = replace(whole, rewards=replace(whole.rewards, score=None))
    assert openai(group(unscored), min_score=-1.0) == []


def test_reasoning_is_left_out_and_counted():
    lines, notes = lines_of("openai", group(trajectory(said("a", reasoning="hm"), rewards=(1.0,))))
    assert "reasoning_content" not in lines[0]["messages"][-1]
    assert list(notes.values()) == [1]


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
