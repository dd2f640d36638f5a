"""Tool calls in the text of a reply, for servers that do not read their model's format."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Protocol

from environments.policy.rendering.families import checked_family
from environments.policy.rendering.family_renderer import text_reader
from environments.policy.rendering.text_formats import (
    PYTHON_TAG,
    JsonCall,
    answer_start,
    bare_list_calls,
    blocks,
    deepseek_calls,
    harmony_calls,
    hermes_calls,
    llama_calls,
    mistral_calls,
    python_tag_calls,
    without,
)
from tools.calls import ToolCall, ToolSpec

Calls = list[JsonCall]
Found = tuple[str, Calls]

_LONGEST: Final = 4_000_000
"""Characters; no model writes that much in one turn, and reading it would take minutes."""
_TAGS: Final = ("<tool_call>", "</tool_call>")
_MISTRAL: Final = "[TOOL_CALLS]"
_DEEPSEEK: Final = (
    "<\uff5ctool\u2581calls\u2581begin\uff5c>",
    "<\uff5ctool\u2581calls\u2581end\uff5c>",
)
_HARMONY: Final = ("<|channel|>commentary to=", "<|call|>")
_INKLING: Final = ("<|content_invoke_tool_json|>", "<|end_message|>")
_INKLING_NAME: Final = re.compile(
    r"(?:<\|message_model\|>)?(?<![\w.-])[\w.-]*+(?=<\|content_invoke_tool_json\|>)"
)
"""It stands in the call, too."""
_HERMES_FAMILIES: Final = frozenset({"chatml", "hermes", "qwen3", "qwen3-vl"})
_DEEPSEEK_FAMILIES: Final = frozenset({"deepseek-r1", "deepseek-v3", "deepseek-v3.1"})
_SECTIONS: Final = {
    "deepseek-v4": ("<\uff5cDSML\uff5ctool_calls>", "</\uff5cDSML\uff5ctool_calls>"),
    "gemma4": ("<|tool_call>", "<tool_call|>"),
    "hy3": ("<tool_calls:opensource>", "</tool_calls:opensource>"),
    "kimi-k2": ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    "kimi-k2.5": ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    "minimax-m2": ("<minimax:tool_call>", "</minimax:tool_call>"),
}
"""Where the calls of a family stand, if not between the usual tags."""
_READ_AS: Final = {"qwen3-coder": "qwen3.5"}


def read_text_calls(content: str, family: str, tools: Sequence[ToolSpec]) -> tuple[str, tuple[ToolCall, ...]]:
    """The content without its calls, and the calls; one that cannot be read carries its status.

    Only what stands where the format has its calls is one: text in reasoning, in a code block or quoted in a
    sentence stays text. The calls are named `call_0`, `call_1`, … and have no span.

    Raises:
        ConfigError: no such family, or it is read by the package of the extra `families`, which is missing.
    """
    names = [tool.name for tool in tools]
    checked_family(family)
    if len(content) > _LONGEST:
        return content, ()
    if family in _HERMES_FAMILIES:
        return _numbered(_in_blocks(content, _TAGS, hermes_calls))
    if family in _DEEPSEEK_FAMILIES:
        return _numbered(_in_blocks(content, _DEEPSEEK, deepseek_calls))
    if family == "gpt-oss":
        return _numbered(_in_blocks(content, _HARMONY, harmony_calls))
    if family == "inkling":
        calls = _numbered(_in_blocks(_INKLING_NAME.sub("", content), _INKLING, hermes_calls))
        return calls if calls[1] else (content, ())
    if family == "llama-3":
        return _numbered(_llama(content, names))
    if family == "mistral":
        return _numbered(_mistral(content, names))
    return _by_library(content, _READ_AS.get(family, family), tools)


class _ReadBlock(Protocol):
    def __call__(self, body: str, *, closed: bool) -> Calls: ...


def _in_blocks(content: str, tags: tuple[str, str], read: _ReadBlock) -> Found:
    read_blocks = [(block, read(block.body, closed=block.closed)) for block in blocks(content, *tags)]
    kept = [(block, calls) for block, calls in read_blocks if block.own_line or _any_ok(calls)]
    return without(content, [block for block, _ in kept]), [call for _, calls in kept for call in calls]


def _llama(content: str, names: Sequence[str]) -> Found:
    if calls := llama_calls(content, names):
        return "", calls
    return _in_blocks(content, (PYTHON_TAG, ""), lambda body, closed: python_tag_calls(body, names))


def _mistral(content: str, names: Sequence[str]) -> Found:
    start = answer_start(content)
    if calls := bare_list_calls(content[start:], names):
        return content[:start].strip(), calls
    found = list(blocks(content, _MISTRAL, ""))
    calls, rest = mistral_calls(found[0].body) if found else ([], "")
    stands_alone = bool(found) and (
        found[0].own_line or (_any_ok(calls) and not rest.partition("\n")[0].strip())
    )
    if not stands_alone:
        return content, []
    return "\n".join(filter(None, (without(content, found), rest.strip()))), calls


def _by_library(content: str, family: str, tools: Sequence[ToolSpec]) -> tuple[str, tuple[ToolCall, ...]]:
    reader = text_reader(family)
    opening, closing = _SECTIONS.get(family, _TAGS)
    read_blocks = [
        (block, reader.parse_text(content[block.start : block.end], tools).tool_calls)
        for block in blocks(content, opening, closing)
    ]
    kept = [(block, calls) for block, calls in read_blocks if calls and (block.own_line or _any_ok(calls))]
    return without(content, [block for block, _ in kept]), tuple(
        replace(call, id=f"call_{index}", span=None)
        for index, call in enumerate(call for _, calls in kept for call in calls)
    )


def _any_ok(calls: Sequence[JsonCall | ToolCall]) -> bool:
    return any(call.status == "ok" for call in calls)


def _numbered(found: Found) -> tuple[str, tuple[ToolCall, ...]]:
    content, calls = found
    return content, tuple(
        ToolCall(id=f"call_{index}", name=call.name, arguments=call.arguments, status=call.status)
        for index, call in enumerate(calls)
    )
