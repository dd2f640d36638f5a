"""The calls of a message that was sampled as tokens."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from environments.policy.base import CompletionRequest
from environments.trajectory import Message


def whole_calls(message: Message, request: CompletionRequest, *, is_cut: bool) -> Message:
    """The message with its calls named by where they stand; of a turn that was cut, the last is none."""
    calls: Sequence[Any] = message.tool_calls
    if is_cut:
        calls = [call for call in calls if call.status != "unclosed_block"]
    prefix = f"call_{request.seed}_{request.number}"
    named = tuple(replace(call, id=f"{prefix}_{index}") for index, call in enumerate(calls))
    return replace(message, tool_calls=named)
