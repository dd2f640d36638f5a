"""Texts as a page takes them: a long one is cut in its middle, and says how long it was."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import orjson

from environments.trajectory import JudgeCall, Message
from environments.viewer.page_values import CutText, PageCall, PageJudgeCall, PageMessage, Text

_TAIL_SHARE = 4


@dataclass(slots=True, kw_only=True)
class TextCutter:
    """Cuts texts beyond a length, and counts them."""

    max_chars: int
    cut: int = 0

    def text(self, text: str) -> Text:
        """The text, or its head and tail."""
        if len(text) <= self.max_chars:
            return text
        self.cut += 1
        tail = self.max_chars // _TAIL_SHARE
        return CutText(head=text[: self.max_chars - tail], tail=text[len(text) - tail :], chars=len(text))

    def json(self, value: Any) -> Any:
        """JSON values whose long texts are cut in words; as a whole where that is not enough."""
        if len(orjson.dumps(value)) <= self.max_chars:
            return value
        shorter = self._shorter(value)
        text = orjson.dumps(shorter)
        if len(text) <= 2 * self.max_chars:
            return shorter
        return self._in_words(text.decode())

    def _shorter(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._in_words(value)
        if isinstance(value, dict):
            fields = cast("dict[str, Any]", value)
            return {name: self._shorter(each) for name, each in fields.items()}
        if isinstance(value, list):
            return [self._shorter(each) for each in cast("list[Any]", value)]
        return value

    def _in_words(self, text: str) -> str:
        short = self.text(text)
        if isinstance(short, str):
            return short
        left_out = short["chars"] - len(short["head"]) - len(short["tail"])
        return f"{short['head']} … ({left_out:,} characters left out) … {short['tail']}"

    def message(self, message: Message) -> PageMessage:
        """A message of a conversation."""
        shown = PageMessage(role=message.role, content=self.text(message.content))
        if message.reasoning is not None:
            shown["reasoning"] = self.text(message.reasoning)
        if message.tool_calls:
            shown["calls"] = [
                PageCall(id=each.id, name=each.name, arguments=self.text(each.arguments), status=each.status)
                for each in message.tool_calls
            ]
        return shown

    def judge_calls(self, role: str, calls: Iterable[JudgeCall]) -> list[PageJudgeCall]:
        """Questions to a second model of this role."""
        return [
            PageJudgeCall(
                role=role,
                hook=call.hook,
                turn=call.turn,
                model=call.model,
                messages=[self.message(each) for each in call.messages],
                answer=None if call.answer is None else self.text(call.answer),
            )
            for call in calls
        ]
