"""A model server that is asked for text alone."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol

from environments.policy.inference.chat_reply import (
    FilteredReplyError,
    ReplyError,
    SampledMessage,
    read_reply,
)
from environments.policy.inference.dialect import (
    CAPTURE,
    Dialect,
    RefusedSettingError,
    is_context_overflow,
    is_filtered,
    sampling_of,
)
from environments.policy.inference.http_client import NoAnswerError, StatusError, request_body
from environments.policy.inference.server_kind import ServedModel
from environments.trajectory import Message
from tools.errors import SecondModelError

LONGEST_ANSWER = 200_000
"""Characters; what follows is cut, as by a server's own limit."""


_REASONING = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("[THINK]", "[/THINK]"),
    ("<|channel|>analysis", "<|channel|>final<|message|>"),
)
"""How a model's reasoning begins and ends, where its server leaves it in the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextAnswer:
    """The answer to one question."""

    text: str | None
    """Without reasoning; `None`: it takes no such question, see `problem`."""
    problem: Literal["too_long", "filtered", "refused", "cut", "empty"] | None = None
    """`too_long`, `filtered`: of the question, and the same one has no other answer. `refused`: the text is
    what the server calls a refusal. `cut`: it is longer than it may be."""
    usage: Mapping[str, int] = field(default_factory=dict[str, int])
    """`prompt_tokens` and `completion_tokens` that were paid for it, where they are known."""


class Answering(Protocol):
    """A model server, or a script in its place."""

    @property
    def model(self) -> str:
        """What the record calls it."""
        ...

    def sampling(self, seed: int) -> Mapping[str, Any]:
        """How it is asked to sample, as in the record."""
        ...

    async def answer(self, messages: Sequence[Message], *, seed: int) -> TextAnswer:
        """The answer to a conversation that ends with a user message.

        Raises:
            SecondModelError: no answer after the server's tries.
        """
        ...


def without_reasoning(text: str) -> str:
    """What follows the reasoning that a server left in the text; nothing where that is left open."""
    start = text.lstrip()
    if start.startswith(("{", "```")):
        return text  # a verdict, which may quote such a mark
    for begins, ends in _REASONING:
        if start.startswith(begins):
            return start.partition(ends)[2]
    thought, ended, answer = text.partition(_REASONING[0][1])
    # What follows a verdict may be an agent's text, quoted: it ends no reasoning.
    return answer if ended and "{" not in thought else text


_LOG = logging.getLogger(__name__)
_INVALID = (400, 422)
_TOO_LARGE = 413
"""The status of proxies in front of servers, without a word about context."""
_LONG_BYTES = 1_000_000
"""Of a reply, from which reading it takes some 10 ms."""


@dataclass(kw_only=True, eq=False)
class TextModel(ServedModel):
    """Asks by messages; tries, waits and requests at once are those of the server."""

    role: str
    """The section of its settings, such as `judge`."""
    temperature: float
    top_p: float
    max_tokens: int
    extra_body: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """More fields of each request."""
    _dialect: Dialect = field(init=False, repr=False)
    _has_answered: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        """Nothing is known of the server yet; no token ids are asked for."""
        self._dialect = Dialect(refused=CAPTURE, section=self.role)

    def sampling(self, seed: int) -> Mapping[str, Any]:
        """Temperature, `top_p`, `max_tokens`, the seed and what `extra_body` adds that may shape it."""
        return {**self._shape(), "max_tokens": self.max_tokens, "seed": seed}

    async def answer(self, messages: Sequence[Message], *, seed: int) -> TextAnswer:
        """Ask the server.

        Raises:
            RefusedSettingError: it refuses a setting, which the text names.
            SecondModelError: no answer after the server's tries, or one that is no completion.
        """
        dialect = self._dialect
        while True:
            try:
                answer = await self.server.chat(self._body(messages, dialect, seed), self._read)
                break
            except StatusError as error:
                if error.status == _TOO_LARGE or is_context_overflow(error):
                    return TextAnswer(text=None, problem="too_long")
                if is_filtered(error):
                    return TextAnswer(text=None, problem="filtered")
                simpler = self._after_refusal(error, dialect)
                if simpler is None:
                    return TextAnswer(text=None, problem="filtered")
                dialect = simpler
            except NoAnswerError as error:
                raise self._lost(self.answered(error)) from error
            except ReplyError as error:
                raise self._lost(str(error)) from error
        self._dialect, self._has_answered = self._dialect.joined(dialect), True
        return answer

    async def _read(self, content: bytes) -> TextAnswer:
        read = partial(read_reply, content, "", max_tokens=self.max_tokens)
        try:
            return _answer_of(read() if len(content) < _LONG_BYTES else await asyncio.to_thread(read))
        except FilteredReplyError:
            return TextAnswer(text=None, problem="filtered")

    def _after_refusal(self, error: StatusError, dialect: Dialect) -> Dialect | None:
        """A simpler dialect; `None` where only the question can be at fault: other ones were answered."""
        try:
            simpler = dialect.without_refused(error, self._shape(), gives_ids=False)
        except RefusedSettingError as refusal:
            raise RefusedSettingError(f"{self._url}: {refusal}") from error
        if simpler is None and self._has_answered and error.status in _INVALID:
            return None
        if simpler is None:
            raise self._lost(self.answered(error)) from error
        _LOG.warning("%s refuses a part of the request (%s); asking without it", self._url, error.reason)
        return simpler

    def _body(self, messages: Sequence[Message], dialect: Dialect, seed: int) -> bytes:
        sampling = {"temperature": self.temperature, "top_p": self.top_p}
        fields = dialect.fields(sampling, seed=seed, max_tokens=self.max_tokens)
        spoken = [message.json() for message in messages]
        return request_body({"model": self.model, **fields, **self.extra_body}, {"messages": spoken})

    def _shape(self) -> dict[str, Any]:
        return sampling_of(self.temperature, self.top_p, self.extra_body)

    def _lost(self, why: str) -> SecondModelError:
        return SecondModelError(f"the {self.role}'s model, {self._url}: {why}")

    @property
    def _url(self) -> str:
        return self.server.chat_url


def _answer_of(sampled: SampledMessage) -> TextAnswer:
    text = without_reasoning(sampled.message.content)
    problem = None
    if sampled.is_refusal:
        problem = "refused"
    elif sampled.finish_reason == "length" or len(text) > LONGEST_ANSWER:
        problem = "cut"
    elif not text.strip():
        problem = "empty"
    return TextAnswer(text=text[:LONGEST_ANSWER], problem=problem, usage=sampled.usage)
