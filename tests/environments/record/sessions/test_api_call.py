"""Logged calls of OpenAI's and Anthropic's APIs: what was sent and the reply are one conversation."""

from contextlib import suppress

import pytest
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from environments.policy.inference.written_messages import MessageError
from environments.record.sessions.api_call import as_session
from environments.record.sessions.logged_session import Scale, SessionError, read_session
from tests.environments.record.sessions.logs import chat, user
from tests.tables import cases

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
MESSAGES = [{"role": "developer", "content": [{"type": "text", "text": "Sell."}]}, user("hi")]
REPLY = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "gpt-9-2026",
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "logprobs": None,
            "message": {
                "role": "assistant",
                "content": None,
                "refusal": None,
                "annotations": [],
                "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"x": 1}'}}
                ],
            },
        }
    ],
}
CHAT = ChatCompletion.model_validate(REPLY).model_dump(mode="json")
BODY = {"model": "gpt-9", "messages": MESSAGES, "tools": [TOOL], "stop": ["\n"], "n": 1}
SENT = [
    user("hi"),
    {"type": "reasoning", "id": "rs_0", "summary": [{"type": "summary_text", "text": "Look first."}]},
    {"type": "function_call", "id": "fc_0", "call_id": "c0", "name": "look", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c0", "output": "seen"},
]
OUTPUT = [
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "xyz"},
    {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "Done.", "annotations": []}],
    },
    {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "look", "arguments": "{}", "vote": 1},
]
ANSWER = {
    "id": "resp_1", "object": "response", "created_at": 1.0, "model": "gpt-9", "output": OUTPUT, "tools": [],
    "parallel_tool_calls": True, "tool_choice": "auto", "status": "completed",
}  # fmt: skip
RESPONSE = Response.model_validate(ANSWER).model_dump(mode="json")


def read(fields):
    return read_session(fields, Scale())


@cases(
    "line",
    [
        {**BODY, "response": CHAT},
        {"request": BODY, "response": CHAT},
        {**BODY, **{name: CHAT[name] for name in ("id", "object", "choices")}},
        {"custom_id": "1", "url": "/v1/chat/completions", "body": BODY, "response": {"body": CHAT}},
    ],
    ids=["reply in a field", "both in fields", "side by side", "batch"],
)
def test_a_chat_completion_ends_the_conversation_that_was_sent(line):
    session = read(line)
    (turn,) = session.turns
    assert [(each.role, each.content) for each in session.prompt] == [("system", "Sell."), ("user", "hi")]
    assert turn.message.tool_calls[0].arguments == '{"x": 1}'
    assert (session.session_id, session.model, session.tools[0].name) == ("chatcmpl-1", "gpt-9", "look")


def test_items_of_one_response_are_one_turn():
    session = read({"model": "gpt-9", "instructions": "Be brief.", "input": SENT, "response": RESPONSE})
    first, last = session.turns
    assert [each.content for each in session.prompt] == ["Be brief.", "hi"]
    assert (first.message.reasoning, first.message.tool_calls[0].id) == ("Look first.", "c0")
    assert [each.content for each in first.tool_results] == ["seen"]
    assert (last.message.content, last.message.tool_calls[0].id) == ("Done.", "c1")


def test_a_text_as_input_is_the_users_message():
    assert [each.content for each in read({"input": "hi", "output": OUTPUT}).prompt] == ["hi"]


def test_a_reply_of_anthropics_ends_the_conversation_that_was_sent():
    message = {
        "id": "msg",
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": "a"}],
    }
    session = read({"system": "s", "messages": [user("hi")], "response": message})
    assert session.turns[0].message.content == "a"
    assert [each.role for each in session.prompt] == ["system", "user"]


def test_fields_of_a_session_that_only_look_like_a_reply_are_ignored():
    logged = chat(
        {"role": "assistant", "content": "a"}, choices=["x", "y"], output=[1], request={"ip": 1}, input="x"
    )
    assert len(read(logged).turns) == 1


@cases(
    ("line", "message"),
    [
        (
            {**BODY, "response": {**CHAT, "choices": CHAT["choices"] * 2}},
            "has 2 choices; give each in a line",
        ),
        ({**BODY, "response": "text"}, "response is 'text'; give an object"),
        ({**BODY, "response": {"error": {}}}, r"response has only \['error'\]; give choices, output or"),
        ({"response": CHAT}, "has a reply and not what was sent; give messages or input beside it"),
        (
            {"input": "hi", "previous_response_id": "r", "output": OUTPUT},
            "goes on from what is at the server alone",
        ),
        ({"input": [{"type": "web_search_call"}]}, r"input\[0\] has the type 'web_search_call'; messages"),
        ({"input": {"messages": []}, "preferred_output": []}, "input is .*; give text or a list of items"),
    ],
    ids=["choices", "text", "error", "reply alone", "previous", "other item", "preference"],
)
def test_what_could_mean_two_things_is_refused(line, message):
    with pytest.raises(SessionError, match=message):
        read(line)


def test_a_vote_on_one_item_of_a_turn_is_the_turns_and_two_that_differ_are_refused():
    def read(*votes):
        items = [{"type": "message", "role": "assistant", "content": "a", "vote": vote} for vote in votes]
        return as_session({"input": "go", "output": items})["messages"][-1]["vote"]

    assert [read(None, "up"), read("up", None), read("up", "up")] == ["up"] * 3
    with pytest.raises(MessageError, match=r"output\[1\] has another vote"):
        read("up", "down")


@pytest.mark.parametrize("item", [{"type": []}, {"type": "reasoning", "content": 5, "summary": 7}], ids=str)
def test_items_of_odd_shapes_end_in_no_traceback(item):
    with suppress(MessageError):
        as_session({"input": [{"role": "user", "content": "go"}, item]})


def test_tools_of_the_server_are_left_out_and_a_namespace_is_a_list_of_tools():
    tools = [
        {"type": "web_search"},
        {"type": "custom", "name": "patch"},
        {"type": "namespace", "name": "eyes", "tools": [{"type": "function", "name": "look"}]},
    ]
    session = read({"input": SENT, "tools": tools, "response": RESPONSE})
    assert [each.name for each in session.tools] == ["look"]
