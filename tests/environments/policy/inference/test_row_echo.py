"""A reply whose prompt begins with the open row is read from there on, and any other as a whole."""

import orjson

from environments.policy.inference.chat_reply import without_row
from tests.tables import cases


def reply(ids, **fields):
    return orjson.dumps({"choices": [{"index": 0}], "prompt_token_ids": ids, **fields})


def rest(content, row):
    cut = without_row(content, orjson.dumps(row)[1:-1])
    return None if cut is None else orjson.loads(cut)


def test_what_follows_the_row_is_left():
    assert rest(reply([1, 2, 3, 40, 5]), [1, 2, 3]) == {
        "choices": [{"index": 0}],
        "prompt_token_ids": [40, 5],
    }


@cases(
    "ids",
    [[1, 2], [1, 2, 3], [1, 2, 30, 4], [1, 9, 3, 4], [11, 2, 3, 4], []],
    ids=["shorter", "the row alone", "a longer id", "another id", "another first id", "none"],
)
def test_a_prompt_that_does_not_go_on_is_left_alone(ids):
    assert rest(reply(ids), [1, 2, 3]) is None


def test_ids_beside_the_choice_are_found_in_it():
    content = orjson.dumps({"choices": [{"prompt_token_ids": [1, 2, 3]}]})
    assert rest(content, [1, 2]) == {"choices": [{"prompt_token_ids": [3]}]}


def test_ids_that_are_written_with_spaces_are_left_alone():
    assert without_row(b'{"prompt_token_ids": [1, 2, 3]}', b"1,2") is None


@cases("text", ['"prompt_token_ids":[1,2,7]', '"prompt_token_ids": [1, 2, 7]'])
def test_a_reply_that_has_the_name_in_a_text_is_left_alone(text):
    assert rest(reply([1, 2, 3], text=text), [1, 2]) is None


def test_ids_that_are_written_twice_in_two_ways_are_left_alone():
    content = b'{"choices":[{"prompt_token_ids":[1,2,3]}],"prompt_token_ids": [1, 2, 3]}'
    assert without_row(content, b"1,2") is None


def test_a_reply_that_has_the_name_twice_is_left_alone():
    arguments = {"prompt_token_ids": [1, 2, 9]}
    assert rest(orjson.dumps({"arguments": arguments, "prompt_token_ids": [1, 2, 3]}), [1, 2]) is None
    assert rest(orjson.dumps({"prompt_token_ids": [1, 2, 3], "arguments": arguments}), [1, 2]) is None


def test_without_a_row_nothing_is_cut():
    assert without_row(reply([1, 2]), b"") is None
