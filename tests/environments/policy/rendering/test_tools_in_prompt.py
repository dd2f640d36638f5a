import json

from environments.policy.rendering.chatml import ChatMLRenderer
from environments.policy.rendering.hermes import read_hermes_calls
from environments.policy.rendering.tools_in_prompt import write_calls, write_tools
from environments.trajectory import Message
from tools.calls import ToolCall, ToolSpec

TOOL = ToolSpec(name="add", description="Adds.", parameters={"type": "object"})
SYSTEM = Message(role="system", content="be brief")
USER = Message(role="user", content="1 + 1?")
CALLS = tuple(ToolCall(id=f"c{n}", name="add", arguments=f'{{"a":{n}}}') for n in range(2))
RESULTS = tuple(Message(role="tool", content=f"{n}", tool_call_id=f"c{n}") for n in range(2))


def test_tools_stand_in_the_system_message_as_our_own_format_writes_them():
    renderer = ChatMLRenderer.embedded()
    written = write_tools([SYSTEM, USER], [TOOL])
    assert renderer.decode(renderer.prompt_ids(written, ())) == renderer.decode(
        renderer.prompt_ids([SYSTEM, USER], [TOOL])
    )


def test_a_conversation_without_a_system_message_gets_one():
    assert [each.role for each in write_tools([USER], [TOOL])] == ["system", "user"]


def test_calls_that_were_written_as_text_are_read_back():
    turn = Message(role="assistant", content="I add.", tool_calls=CALLS)
    (written,) = write_calls([turn])
    content, calls = read_hermes_calls(written.content)
    assert content == "I add."
    assert [(each.name, each.arguments) for each in calls] == [("add", '{"a":0}'), ("add", '{"a":1}')]


def test_a_call_without_arguments_is_written_as_json():
    _, calls = read_hermes_calls('<tool_call>\n{"name": "add"}\n</tool_call>')
    (written,) = write_calls([Message(role="assistant", tool_calls=calls)])
    assert json.loads(written.content.removeprefix("<tool_call>").removesuffix("</tool_call>")) == {
        "name": "add", "arguments": {},
    }  # fmt: skip


def test_results_and_the_reply_behind_them_are_one_user_message():
    assert write_calls([*RESULTS, USER]) == (
        Message(
            role="user",
            content="<tool_response>\n0\n</tool_response>\n<tool_response>\n1\n</tool_response>\n1 + 1?",
        ),
    )


def test_user_messages_without_results_stay_apart():
    assert write_calls([USER, USER]) == (USER, USER)
