"""Answers that are asked for once: equal questions share one, in flight and afterwards."""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, field, replace
from typing import Any

from environments.second_models.text_answer import Answering, TextAnswer
from environments.trajectory import Message
from tools.errors import PolicyError

_MOST_ANSWERS = 50_000
_MOST_CHARS = 16_000_000
"""Of all answers that are kept together; those that were used last stay."""


@dataclass(slots=True, kw_only=True)
class _Asking:
    task: "asyncio.Task[TextAnswer]"
    waiting: int = 0


@dataclass(kw_only=True, eq=False)
class AnswerCache:
    """A model of which nobody asks the same twice; a failure is not kept."""

    asked: Answering
    _kept: OrderedDict[bytes, TextAnswer] = field(default_factory=OrderedDict[bytes, TextAnswer], init=False)
    _chars: int = field(default=0, init=False)
    _asking: dict[bytes, _Asking] = field(default_factory=dict[bytes, _Asking], init=False)

    @property
    def model(self) -> str:
        """Its name."""
        return self.asked.model

    def sampling(self, seed: int) -> Mapping[str, Any]:
        """How it is asked to sample."""
        return self.asked.sampling(seed)

    async def answer(self, messages: Sequence[Message], *, seed: int) -> TextAnswer:
        """The answer; one that was given before, or is being asked for, costs no tokens.

        Raises:
            SecondModelError: there is none.
        """
        key = _key(messages, seed)
        if key in self._kept:
            self._kept.move_to_end(key)
            return replace(self._kept[key], usage={})
        asking = self._asking.get(key)
        is_first = asking is None
        if asking is None:
            # Not in the context of the hook that asks first, which may be cancelled while others wait.
            task = asyncio.get_running_loop().create_task(
                self._answered(key, messages, seed), context=Context()
            )
            asking = self._asking[key] = _Asking(task=task)
        asking.waiting += 1
        try:
            answer = await asyncio.shield(asking.task)
        except PolicyError as error:
            raise type(error)(str(error)) from None  # one for each who waits: tracebacks grow
        finally:
            asking.waiting -= 1
            if asking.waiting == 0:
                asking.task.cancel()
                if self._asking.get(key) is asking:
                    del self._asking[key]
        return answer if is_first else replace(answer, usage={})

    async def _answered(self, key: bytes, messages: Sequence[Message], seed: int) -> TextAnswer:
        answer = await self.asked.answer(messages, seed=seed)
        self._kept[key] = answer
        self._chars += len(answer.text or "")
        while len(self._kept) > _MOST_ANSWERS or self._chars > _MOST_CHARS:
            _, oldest = self._kept.popitem(last=False)
            self._chars -= len(oldest.text or "")
        return answer


def _key(messages: Sequence[Message], seed: int) -> bytes:
    content = hashlib.sha256(b"%d" % seed)
    for message in messages:
        content.update(message.json() + b"\n")
    return content.digest()
