"""Shared parts of model server policies: prompts that extend a row, token limits, named calls."""

import logging
import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from environments.policy.base import CompletionRequest, OpenRow
from environments.policy.rendering.chatml import CannotExtendError, Renderer, count_chars
from environments.trajectory import Message
from tools.errors import ContextOverflow


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    prompt_ids: tuple[int, ...]
    extends_row: bool = False
    fork: str | None = None


def new_messages(request: CompletionRequest) -> Sequence[Message]:
    return request.messages if request.row is None else request.messages[request.row.messages :]


def extend_row(request: CompletionRequest, row: OpenRow, renderer: Renderer) -> tuple[int, ...]:
    return renderer.extend(row.token_ids[row.sampled_start :], new_messages(request), request.tools)


def render_prompt(request: CompletionRequest, renderer: Renderer) -> Prompt:
    """Return the ids after the open row, or the whole prompt if the row is missing or cannot be extended."""
    fork = None
    if (row := request.row) is not None:
        try:
            return Prompt(prompt_ids=extend_row(request, row, renderer), extends_row=True)
        except CannotExtendError as error:
            fork = f"renderer: {error}"
    return Prompt(prompt_ids=renderer.prompt_ids(request.messages, request.tools), fork=fork)


def count_tokens(prompt: Prompt, request: CompletionRequest) -> int:
    row = request.row if prompt.extends_row else None
    return len(prompt.prompt_ids) + (0 if row is None else row.size)


def first_stop_text(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    """Return where the earliest stop text begins in the text, and which one it is."""
    return min(((text.index(each), each) for each in stops if each in text), default=None)


def name_calls(message: Message, request: CompletionRequest, *, is_cut: bool) -> Message:
    """Return the message with calls named by position, without an unclosed call if the turn was cut."""
    calls: Sequence[Any] = message.tool_calls
    if is_cut:
        calls = [call for call in calls if call.status != "unclosed_block"]
    prefix = f"call_{request.seed}_{request.number}"
    named = tuple(replace(call, id=f"{prefix}_{index}") for index, call in enumerate(calls))
    return replace(message, tool_calls=named)


def end_of_stop(
    token_ids: Sequence[int], stops: Sequence[str], decode: Callable[[Sequence[int]], str]
) -> tuple[int, str] | None:
    """Return the number of ids up to the first stop text, its last id included, and the text."""
    text = decode(token_ids) if stops else ""
    found = first_stop_text(text, stops)
    if found is None:
        return None
    end = bisect_left(range(len(token_ids)), True, key=lambda at: found[1] in decode(token_ids[: at + 1]))
    return end + 1, found[1]


_LOG = logging.getLogger(__name__)
_ROLLOUTS = 8
_MARKERS = re.compile(
    r"<tool_calls?>|<function=|<function_call|\[TOOL_CALLS\]|<\|python_tag\|>|<minimax:tool_call>|<\|?tool_call\|?>"
    r"|<[|\uff5c]tool[_\u2581]calls?(?:_section)?[_\u2581]begin[|\uff5c]>|to=functions\.|```tool_(?:call|code)"
)
_SWITCHES = (
    "--enable-auto-tool-choice --tool-call-parser NAME of vLLM, --tool-call-parser NAME of SGLang, --jinja "
    "of llama.cpp; or name the model's format with --openai.family, and its text is read here"
)


class ToolUse:
    def __init__(self, url: str, *, advice: str = f"switch on {_SWITCHES}") -> None:
        self._url = url
        self._advice = advice
        self._without: set[int] | None = set()
        """Seeds of rollouts without a call so far; None once a call came or the warning was logged."""
        self._warned_of_markers = False

    def note(self, request: CompletionRequest, message: Message) -> bool:
        """Return whether enough rollouts called no tool for the warning, which is due once."""
        if request.kind == "summary":
            return False
        if not request.tools or message.tool_calls:
            self._without = None if message.tool_calls else self._without
            return False
        if not self._warned_of_markers and (marker := _MARKERS.search(message.content)):
            self._warned_of_markers = True
            _LOG.warning(
                "%s: an answer holds %r as text, and no tool call was read: %s",
                self._url, marker[0], self._advice,
            )  # fmt: skip
        if self._without is None:
            return False
        self._without.add(request.seed)
        if len(self._without) < _ROLLOUTS:
            return False
        self._without = None
        return True

    def warn(self, request: CompletionRequest, *, dropped_from: int | None = None) -> None:
        """Warn that no tool was called; `dropped_from`: the prompt's tokens, if tools do not change them."""
        advice = f"if it is to call them, {self._advice}"
        if dropped_from is not None:
            advice = f"{dropped_tools(dropped_from)}: {TOOLS_IN_PROMPT}"
        _LOG.warning(
            "%s: the model called none of the %d tools that it was offered in the first %d rollouts; %s",
            self._url, len(request.tools), _ROLLOUTS, advice,
        )  # fmt: skip


TOOLS_IN_PROMPT = "--openai.tools prompt writes them into the prompt"


def dropped_tools(prompt_tokens: int) -> str:
    return f"its template drops them, {prompt_tokens} prompt tokens with and without"


def with_token_limit(
    request: CompletionRequest, *, prompt_tokens: int, context_tokens: int | None
) -> CompletionRequest:
    """Return the request with `max_tokens` limited to the room that is left.

    A turn cut by this limit has the finish reason `length` and fewer tokens than requested, which tells the
    loop that the window is full, not the budget spent.

    Raises:
        ContextOverflow: if there is no room for one token.
    """
    limits = [each for each in (context_tokens, request.max_row_tokens) if each is not None]
    if not limits:
        return request
    room = min(limits) - prompt_tokens
    if room < 1:
        window = "the model's window" if min(limits) == context_tokens else "a row (--env.max_token_length)"
        raise ContextOverflow(f"{prompt_tokens} prompt tokens leave no room in the {min(limits)} of {window}")
    return replace(request, max_tokens=min(request.max_tokens, room))


def min_prompt_tokens(request: CompletionRequest, *, longest_token: int) -> int:
    """Return a lower bound on the tokens of a prompt that the server renders.

    The open row counts in full unless it has reasoning, which templates may drop from earlier turns.
    """
    row, messages = request.row, request.messages
    if row is not None and not any(message.reasoning for message in messages):
        return row.size + count_chars(messages[row.messages :]) // longest_token
    return count_chars(messages, reasoning=False) // longest_token
