"""Replies of servers that do not read their model's calls: they are read from the text, by its format."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from environments.inference.chat_reply import SampledMessage, call_id
from environments.policy.rendering.text_calls import read_text_calls
from tools.calls import ToolSpec

_LONG_CHARS = 50_000
"""From which on reading takes some milliseconds."""


async def with_text_calls(
    sampled: SampledMessage, family: str, tools: Sequence[ToolSpec], call_prefix: str
) -> SampledMessage:
    """The reply with the calls that its text holds; the tokens stay as they were sampled.

    Raises:
        ConfigError: no such family, or its package is missing.
    """
    message = sampled.message
    if message.tool_calls or not tools or not message.content:
        return sampled
    if len(message.content) < _LONG_CHARS:
        content, calls = read_text_calls(message.content, family, tools)
    else:
        content, calls = await asyncio.to_thread(read_text_calls, message.content, family, tools)
    if not calls:
        return sampled
    named = tuple(replace(call, id=call_id(call_prefix, index)) for index, call in enumerate(calls))
    return replace(
        sampled,
        message=replace(message, content=content, tool_calls=named),
        finish_reason="length" if sampled.finish_reason == "length" else "tool_calls",
    )
