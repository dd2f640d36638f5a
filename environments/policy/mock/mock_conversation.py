"""The conversation that the ids of a ChatML prompt hold: how a script knows what it is asked."""

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, cast

from environments.policy.rendering.chatml import MARKERS, RESPONSE, START, TOOLS, ChatMLRenderer
from environments.trajectory import Message
from tools.calls import ToolSpec

_BEFORE_TOOLS = "# Tools\n\nYou may call these functions. Their signatures:\n"


def conversation_of(
    prompt_ids: Sequence[int], renderer: ChatMLRenderer
) -> tuple[tuple[Message, ...], tuple[ToolSpec, ...]]:
    """The messages and the offered tools, the reverse of `ChatMLRenderer.prompt_ids`.

    Call ids are not in the tokens: the calls of a message are named by where they stand.

    Raises:
        ValueError: the ids are no such prompt.
    """
    markers = _marker_ids(renderer)
    opening = renderer.prompt_ids((), ())
    blocks = _split(prompt_ids, markers[START])
    if blocks[0] or len(blocks) < 2 or tuple(blocks.pop()) != opening[1:]:
        raise ValueError("the prompt does not end where an assistant message begins")
    messages: list[Message] = []
    tools: tuple[ToolSpec, ...] = ()
    for block in blocks[1:]:
        ids = _until(block, renderer.stop_ids)
        if tuple(ids[: len(opening) - 1]) == opening[1:]:
            messages.append(_assistant(renderer.parse(block[len(opening) - 1 :]), len(messages)))
        elif markers[TOOLS[0]] in ids:
            tools = _tools(renderer.decode(ids[ids.index(markers[TOOLS[0]]) + 1 :]))
            system = renderer.decode(ids[: ids.index(markers[TOOLS[0]])]).partition("\n")[2]
            system = system.removesuffix(_BEFORE_TOOLS).removesuffix("\n\n")
            messages += [Message(role="system", content=system)] if system else []
        else:
            messages.append(_other(renderer.decode(ids), messages))
    return tuple(messages), tools


@lru_cache(maxsize=8)
def _marker_ids(renderer: ChatMLRenderer) -> dict[str, int]:
    texts = {renderer.decode([token_id]): token_id for token_id in range(renderer.vocabulary_size)}
    return {marker: texts[marker] for marker in MARKERS}


def _split(ids: Sequence[int], at: int) -> list[list[int]]:
    blocks: list[list[int]] = [[]]
    for token_id in ids:
        if token_id == at:
            blocks.append([])
        else:
            blocks[-1].append(token_id)
    return blocks


def _until(ids: list[int], stops: Sequence[int]) -> list[int]:
    end = next((index for index, token_id in enumerate(ids) if token_id in stops), len(ids))
    return ids[:end]


def _assistant(message: Message, position: int) -> Message:
    calls = tuple(_named(call, f"call_{position}_{index}") for index, call in enumerate(message.tool_calls))
    return Message(role="assistant", content=message.content, reasoning=message.reasoning, tool_calls=calls)


def _named(call: Any, name: str) -> Any:
    return type(call)(id=name, name=call.name, arguments=call.arguments)


def _tools(text: str) -> tuple[ToolSpec, ...]:
    listed = text.partition(f"\n{TOOLS[1]}")[0].strip("\n").splitlines()
    functions = [cast("dict[str, Any]", json.loads(line))["function"] for line in listed]
    return tuple(ToolSpec(**function) for function in functions)


def _other(text: str, before: Sequence[Message]) -> Message:
    role, _, content = text.partition("\n")
    if role == "tool":
        content = content.removeprefix(f"{RESPONSE[0]}\n").removesuffix(f"\n{RESPONSE[1]}")
        return Message(role="tool", content=content, tool_call_id=_answered(before))
    if role not in ("system", "user"):
        raise ValueError(f"the prompt has a message of role {role[:40]!r}")
    return Message(role=role, content=content)


def _answered(before: Sequence[Message]) -> str | None:
    """The call that a tool message answers: they come in the order of the calls."""
    asked = next((index for index in reversed(range(len(before))) if before[index].role == "assistant"), None)
    if asked is None:
        return None
    calls, answers = before[asked].tool_calls, len(before) - asked - 1
    return calls[answers].id if answers < len(calls) else None
