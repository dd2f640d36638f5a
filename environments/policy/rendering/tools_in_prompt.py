"""Tools as text of messages, in Hermes' form, for models whose chat template has no place for them."""

from collections.abc import Sequence
from dataclasses import replace

from environments.policy.rendering.chatml import RESPONSE, tools_parts, write_call
from environments.policy.rendering.hermes import CALL
from environments.trajectory import Message
from tools.calls import ToolSpec


def write_tools(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[Message, ...]:
    """Return the messages with the tools in the system message, and calls and results as text."""
    written = write_calls(messages)
    if not tools:
        return written
    has_system = bool(written) and written[0].role == "system"
    text = "".join(
        tools_parts(written[0].content if has_system else "", [tool.signature() for tool in tools])
    )
    return (Message(role="system", content=text), *written[has_system:])


def write_calls(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the messages with calls as text; results and the reply after them become one user message."""
    written: list[Message] = []
    follows_result = False
    for message in messages:
        is_result = message.role == "tool"
        if is_result:
            content = f"{RESPONSE[0]}\n{message.content}\n{RESPONSE[1]}"
        else:
            given = [replace(call, arguments=call.arguments or "{}") for call in message.tool_calls]
            calls = [f"{CALL[0]}{write_call(call)}{CALL[1]}" for call in given]
            content = "\n".join([*([message.content] if message.content or not calls else []), *calls])
        if follows_result and message.role in ("tool", "user"):
            written[-1] = replace(written[-1], content=f"{written[-1].content}\n{content}")
        else:
            role = "user" if is_result else message.role
            written.append(replace(message, role=role, content=content, tool_calls=(), tool_call_id=None))
        follows_result = is_result
    return tuple(written)
