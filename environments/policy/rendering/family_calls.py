"""Tool calls that the `renderers` library read, as our values."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from environments.policy.rendering.text_formats import (
    PYTHON_TAG,
    deepseek_calls,
    llama_calls,
    python_tag_calls,
    read_json_call,
)
from tools.calls import CallStatus, ToolCall, ToolSpec

_STATUSES: Final[Mapping[str, CallStatus]] = {
    "ok": "ok",
    "unknown_tool": "ok",  # the toolset says so, and names those there are
    "invalid_json": "invalid_json",
    "unclosed_block": "unclosed_block",
    "missing_name": "missing_name",
}
_OPENED: Final = re.compile("<(?:｜DSML｜)?(?:parameter|arg_key|arg_value)[ :=>]")
_CLOSED: Final = re.compile("</(?:｜DSML｜)?(?:parameter|arg_key|arg_value)[:>]")
_PYTHON: Final[Mapping[str, Any]] = {"True": True, "False": False, "None": None}


_MOST_UNCLOSED: Final = 100


def leaves_open(text: str) -> bool:
    """Whether a turn opens many parameters and does not close them.

    The library looks through all that follows for the end of each, and holds the interpreter for minutes.
    """
    opened = [each.start() for each in _OPENED.finditer(text)]
    closed = [each.start() for each in _CLOSED.finditer(text)]
    after = sum(start > closed[-1] for start in opened) if closed else len(opened)
    return max(after, len(opened) - len(closed)) > _MOST_UNCLOSED


def tool_call(found: Any, index: int, tools: Sequence[ToolSpec]) -> ToolCall:
    """One attempt at a call: its arguments verbatim where they are JSON, and as JSON where they are not."""
    status: CallStatus = _STATUSES.get(str(found.status), "malformed")
    name = found.name or ""
    arguments: Any = found.arguments
    if status == "invalid_json" and isinstance(arguments, dict):
        arguments, fixed = _from_python(arguments, _properties(name, tools))  # pyright: ignore[reportUnknownArgumentType]
        status = "ok" if fixed else status
    if status == "ok":
        status = _checked(name, found.raw)
    return ToolCall(
        id=f"call_{index}",
        name=name,
        arguments=_text(found.raw, arguments),
        status=status,
        span=found.token_span,
    )


def deepseek_call(call: ToolCall, text: str) -> ToolCall:
    """The call in the text of its span: the library takes V3.1's arguments for the name of a call."""
    read = deepseek_calls(text, closed=call.status != "unclosed_block")[0]
    return replace(call, name=read.name, arguments=read.arguments, status=read.status)


def llama_message(
    content: str, token_ids: Sequence[int], stop_ids: Sequence[int], tools: Sequence[ToolSpec]
) -> tuple[str, tuple[ToolCall, ...]]:
    """A turn in which the library saw no call: it knows one JSON object, and no `<|python_tag|>`."""
    names = [tool.name for tool in tools]
    if content.startswith(PYTHON_TAG):
        read = python_tag_calls(content.removeprefix(PYTHON_TAG), names)
    else:
        read = llama_calls(content, names)
    end = next((index for index, each in enumerate(token_ids) if each in stop_ids), len(token_ids))
    return "" if read else content, tuple(
        ToolCall(
            id=f"call_{index}", name=call.name, arguments=call.arguments, status=call.status, span=(0, end)
        )
        for index, call in enumerate(read)
    )


def _text(raw: str, arguments: Any) -> str:
    """The arguments as the model wrote them."""
    if isinstance(arguments, str):
        return arguments
    if arguments is None:
        return raw
    written = read_json_call(raw).arguments
    for candidate in (written, raw[raw.find("{") : raw.rfind("}") + 1]):
        if _loaded(candidate) == arguments:
            return candidate
    return json.dumps(arguments, ensure_ascii=False)


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _checked(name: str, raw: str) -> CallStatus:
    """The library drops a value that is not closed, and calls the rest whole."""
    if not name:
        return "missing_name"
    opened, closed = (len(pattern.findall(raw)) for pattern in (_OPENED, _CLOSED))
    return "ok" if opened == closed else "malformed"


def _properties(name: str, tools: Sequence[ToolSpec]) -> Mapping[str, Any]:
    spec = next((tool for tool in tools if tool.name == name), None)
    return {} if spec is None else spec.parameters.get("properties", {})


def _from_python(arguments: Mapping[str, Any], properties: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Arguments with Python's words for JSON's, and whether that explains why they were no JSON."""
    fixed: dict[str, Any] = {}
    odd = 0
    for key, value in arguments.items():
        fixed[key] = value
        if isinstance(value, str) and not _allows_text(properties.get(key, {})):
            fixed[key] = _PYTHON.get(value, value)
            odd += value not in _PYTHON
    return fixed, not odd


def _allows_text(schema: Mapping[str, Any]) -> bool:
    kinds = schema.get("type", ())
    branches = schema.get("anyOf") or schema.get("oneOf") or ()
    if not kinds and not branches:
        return True  # nobody says what it is
    return "string" in ([kinds] if isinstance(kinds, str) else kinds) or any(map(_allows_text, branches))
