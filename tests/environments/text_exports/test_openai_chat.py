"""A line per row, with weight 1 where a message is to be trained."""

from dataclasses import replace

from environments.trajectory import Kept, TokenRow
from tests.environments.text_exports.exported import LOOK, group, lines_of, said, trajectory


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
