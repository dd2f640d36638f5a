"""Whether a model calls the tools that it is offered: where it never does, that is said once."""

import logging
import re

from environments.policy.base import CompletionRequest
from environments.trajectory import Message

_LOG = logging.getLogger(__name__)
_ROLLOUTS = 8
"""Without any call, from which on it is no chance."""
_MARKERS = re.compile(
    r"<tool_calls?>|<function=|<function_call|\[TOOL_CALLS\]|<\|python_tag\|>|<minimax:tool_call>|<\|?tool_call\|?>"
    r"|<[|\uff5c]tool[_\u2581]calls?(?:_section)?[_\u2581]begin[|\uff5c]>|to=functions\.|```tool_(?:call|code)"
)
"""How the chat formats in use begin a call."""
_SWITCHES = (
    "--enable-auto-tool-choice --tool-call-parser NAME of vLLM, --tool-call-parser NAME of SGLang, --jinja "
    "of llama.cpp; or name the model's format with --openai.family, and its text is read here"
)


class ToolUse:
    """Watches the answers of one server, until the first call."""

    def __init__(self, url: str, *, advice: str = f"switch on {_SWITCHES}") -> None:
        self._url = url
        self._advice = advice
        self._without: set[int] | None = set()
        """Seeds of rollouts whose model called nothing; `None`: there is nothing to say any more."""
        self._told_of_markers = False

    def note(self, request: CompletionRequest, message: Message) -> None:
        """Take an answer into account, and warn where tools are offered in vain."""
        if request.kind == "summary":
            return
        if not request.tools or message.tool_calls:
            self._without = None if message.tool_calls else self._without
            return
        if not self._told_of_markers and (marker := _MARKERS.search(message.content)):
            self._told_of_markers = True
            _LOG.warning(
                "%s: an answer holds %r as text, and no tool call was read: %s",
                self._url, marker[0], self._advice,
            )  # fmt: skip
        if self._without is None:
            return
        self._without.add(request.seed)
        if len(self._without) >= _ROLLOUTS:
            self._without = None
            _LOG.warning(
                "%s: the model called none of the %d tools that it was offered in the first %d rollouts; if "
                "it is to call them, %s", self._url, len(request.tools), _ROLLOUTS, self._advice,
            )  # fmt: skip
