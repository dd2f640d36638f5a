"""A server's reply is read into a typed value, or refused with what is wrong in it."""

import json

import pytest

from environments.inference.chat_reply import ReplyError, call_id, read_reply
from tests.environments.policy.chat_server import answer


def test_a_call_without_an_id_gets_one_from_the_prefix():
    call = {"function": {"name": "terminal", "arguments": "{}"}}
    reply = read_reply(json.dumps(answer(message={"tool_calls": [call]})).encode(), "call_5_1")
    assert [each.id for each in reply.message.tool_calls] == [call_id("call_5_1", 0)]


def test_what_is_no_chat_completion_is_shown():
    with pytest.raises(ReplyError, match=r"no chat completion \(.*\): <html>"):
        read_reply(b"<html>", "call")


def test_a_stop_token_in_the_place_of_no_number_is_no_answer():
    body = answer()
    body["choices"][0]["matched_stop"] = "NaN happened"
    with pytest.raises(ReplyError, match="the server gave up"):
        read_reply(json.dumps(body).encode(), "call")
