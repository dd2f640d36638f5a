"""Models beside the policy that are not trained: judge, simulated user, summariser."""

import asyncio
import hashlib
import json
import logging
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from environments.policy.inference.chat_reply import (
    FilteredReplyError,
    ReplyError,
    read_long_reply,
    replace_surrogates,
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
from environments.trajectory import JudgeCall, Message
from tools.errors import ConfigError, NoModelError, PolicyError, SecondModelError
from tools.time_profile import measure

LONGEST_ANSWER = 200_000


_REASONING = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("[THINK]", "[/THINK]"),
    ("<|channel|>analysis", "<|channel|>final<|message|>"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextAnswer:
    text: str | None
    """Without reasoning; None: the question cannot be answered, see `problem`."""
    problem: Literal["too_long", "filtered", "refused", "cut", "empty"] | None = None
    """`too_long` and `filtered` concern the question and are permanent; `cut`: the answer exceeds a limit."""
    usage: Mapping[str, int] = field(default_factory=dict[str, int])


class AnswerSource(Protocol):
    """A second model: a server or a script that answers a conversation."""

    @property
    def model(self) -> str: ...

    def sampling(self, seed: int) -> Mapping[str, Any]: ...

    async def answer(self, messages: Sequence[Message], *, seed: int) -> TextAnswer:
        """Answer a conversation that ends with a user message; SecondModelError if no answer came."""
        ...


def without_reasoning(text: str) -> str:
    """Return the text after reasoning that a server left in it, or an empty text if the reasoning is open."""
    start = text.lstrip()
    if start.startswith(("{", "```")):
        return text
    for begins, ends in _REASONING:
        if start.startswith(begins):
            return start.partition(ends)[2]
    thought, ended, answer = text.partition(_REASONING[0][1])
    # Text after a verdict may quote an agent and does not end reasoning.
    return answer if ended and "{" not in thought else text


_LOG = logging.getLogger(__name__)
_INVALID = (400, 422)
_TOO_LARGE = 413


@dataclass(kw_only=True, eq=False)
class TextModel(ServedModel):
    role: str
    max_tokens: int
    _dialect: Dialect = field(init=False, repr=False)
    _has_answered: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        self._dialect = Dialect(refused=CAPTURE, section=self.role)

    def sampling(self, seed: int) -> Mapping[str, Any]:
        return {**self._shape(), "max_tokens": self.max_tokens, "seed": seed}

    async def answer(self, messages: Sequence[Message], *, seed: int) -> TextAnswer:
        dialect = self._dialect
        lists = {"messages": [message.json() for message in messages]}
        while True:
            fields = self.body_fields(dialect, seed=seed, max_tokens=self.max_tokens)
            try:
                answer = await self.server.chat(request_body(fields, lists), self._read)
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
                raise self._failure(self.describe_failure(error)) from error
            except ReplyError as error:
                raise self._failure(str(error)) from error
        self._dialect, self._has_answered = self._dialect.merge(dialect), True
        return answer

    async def _read(self, content: bytes) -> TextAnswer:
        try:
            sampled = await read_long_reply(content, "", max_tokens=self.max_tokens)
        except FilteredReplyError:
            return TextAnswer(text=None, problem="filtered")
        text, problem = without_reasoning(sampled.message.content), None
        if sampled.is_refusal:
            problem = "refused"
        elif sampled.finish_reason == "length" or len(text) > LONGEST_ANSWER:
            problem = "cut"
        elif not text.strip():
            problem = "empty"
        return TextAnswer(text=text[:LONGEST_ANSWER], problem=problem, usage=sampled.usage)

    def _after_refusal(self, error: StatusError, dialect: Dialect) -> Dialect | None:
        """Return a simpler dialect, or None if the question must be at fault since others were answered."""
        try:
            simpler = dialect.without_refused(error, self._shape(), gives_ids=False)
        except RefusedSettingError as refusal:
            raise RefusedSettingError(f"{self._url}: {refusal}") from error
        if simpler is None and self._has_answered and error.status in _INVALID:
            return None
        if simpler is None:
            raise self._failure(self.describe_failure(error)) from error
        _LOG.warning("%s refuses a part of the request (%s); asking without it", self._url, error.reason)
        return simpler

    def _shape(self) -> dict[str, Any]:
        return sampling_of(self.temperature, self.top_p, self.extra_body)

    def _failure(self, why: str) -> SecondModelError:
        return SecondModelError(f"the {self.role}'s model, {self._url}: {why}")

    @property
    def _url(self) -> str:
        return self.server.chat_url


ROLES = ("judge", "user", "summariser")
SCRIPTED = "scripted"
_GROUPS_UNTIL_DOWN = 3

_ID_BYTES = 6
"""48 bits: an agent cannot guess the id of the question that quotes its text, and a model can copy it."""
_WANTED_ID = '\n\nThe JSON object has one more field, copied exactly: "id": "{}"'
_WANTS_ID = re.compile(re.escape(_WANTED_ID).replace(re.escape("{}"), "([0-9a-f]{12})") + r"\Z")


def question_id(question: Sequence[Message]) -> str:
    """Return a hash of a question, which no quoted text can contain; stable when rewards are rescored."""
    content = json.dumps([[message.role, replace_surrogates(message.content)] for message in question])
    return hashlib.blake2b(content.encode(), digest_size=_ID_BYTES).hexdigest()


def request_id(question: Sequence[Message], wanted: str) -> tuple[Message, ...]:
    *before, last = question
    return (*before, replace(last, content=last.content + _WANTED_ID.format(wanted)))


@dataclass(slots=True, kw_only=True)
class SecondModel:
    model: AnswerSource
    role: str = "second model"
    hook: Callable[[], str] = lambda: ""
    recorded: Mapping[tuple[Message, ...], JudgeCall] = field(
        default_factory=dict[tuple[Message, ...], JudgeCall]
    )
    """Recorded answers, which are used instead of new calls."""
    replayed: dict[tuple[Message, ...], list[JudgeCall]] = field(
        default_factory=dict[tuple[Message, ...], list[JudgeCall]]
    )
    """Answers for a branch, each used once and in order: a question may be asked again in equal words."""
    group: Hashable = None
    unusable_in: set[Hashable] = field(default_factory=set[Hashable], repr=False)
    """Groups without a usable answer since the last usable one, in any rollout."""
    calls: list[JudgeCall] = field(default_factory=list[JudgeCall])

    async def ask(self, messages: Sequence[Message], *, turn: int | None = None, seed: int) -> TextAnswer:
        question = tuple(
            replace(message, content=replace_surrogates(message.content)) for message in messages
        )
        left = self.replayed.get(question)
        if (known := left.pop(0) if left else self.recorded.get(question)) is not None:
            self.calls.append(known)
            return TextAnswer(text=known.answer)
        hook = self.hook()
        with measure(self.role):
            answer = await self.model.answer(question, seed=seed)
        self.calls.append(
            JudgeCall(
                hook=hook,
                turn=turn,
                model=self.model.model,
                messages=question,
                sampling=self.model.sampling(seed),
                answer=answer.text,
                usage=answer.usage,
            )
        )
        return answer

    def was_usable(self) -> None:
        self.unusable_in.clear()

    def was_unusable(self, problem: str) -> None:
        """Count an unusable answer.

        Raises:
            SecondModelError: if no answer was usable in three groups in a row.
        """
        self.unusable_in.add(self.group)
        if len(self.unusable_in) >= _GROUPS_UNTIL_DOWN:
            raise SecondModelError(
                f"the {self.role}'s model counts as down: it gave nothing usable in "
                f"{len(self.unusable_in)} groups, the last time: {problem}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedAnswers:
    name: str
    script: Callable[[Sequence[Message]], Awaitable[Any]]
    model: str = SCRIPTED

    def sampling(self, seed: int) -> Mapping[str, Any]:
        return {}

    async def answer(self, messages: Sequence[Message], *, seed: int) -> TextAnswer:
        asks = _WANTS_ID.search(messages[-1].content) if messages else None
        if asks is not None:
            messages = [replace(each, content=each.content.removesuffix(asks[0])) for each in messages]
        given = await self.script(messages)
        if not isinstance(given, str):
            raise ConfigError(f"{self.name} gave {given!r:.100}; give the text that the model answers")
        text = replace_surrogates(given[:LONGEST_ANSWER])
        if asks is not None:
            begin, end = text.find("{"), text.rfind("}") + 1
            with suppress(ValueError, RecursionError):
                json.loads(text[begin:end])
                text = f'{text[: begin + 1]}"id": "{asks[1]}", {text[begin + 1 :]}'
        return TextAnswer(text=text, problem=None if text.strip() else "empty")


class _NoModel:
    model = ""

    def sampling(self, seed: int) -> Mapping[str, Any]:
        return {}

    async def answer(self, messages: Sequence[Message], *, seed: int) -> TextAnswer:
        raise NoModelError("no model answers: this context was made without one")


def no_model() -> SecondModel:
    return SecondModel(model=_NoModel())


_MOST_ANSWERS = 50_000
_MOST_CHARS = 16_000_000


@dataclass(slots=True, kw_only=True)
class _PendingAnswer:
    task: "asyncio.Task[TextAnswer]"
    waiting: int = 0


@dataclass(kw_only=True, eq=False)
class AnswerCache:
    asked: AnswerSource
    _kept: OrderedDict[bytes, TextAnswer] = field(default_factory=OrderedDict[bytes, TextAnswer], init=False)
    _chars: int = field(default=0, init=False)
    _pending: dict[bytes, _PendingAnswer] = field(default_factory=dict[bytes, _PendingAnswer], init=False)

    @property
    def model(self) -> str:
        return self.asked.model

    def sampling(self, seed: int) -> Mapping[str, Any]:
        return self.asked.sampling(seed)

    async def answer(self, messages: Sequence[Message], *, seed: int) -> TextAnswer:
        """Return a kept, pending or new answer; kept ones report no token usage."""
        key = hashlib.sha256(b"%d%b" % (seed, b"\n".join(each.json() for each in messages))).digest()
        if key in self._kept:
            self._kept.move_to_end(key)
            return replace(self._kept[key], usage={})
        asking = self._pending.get(key)
        is_first = asking is None
        if asking is None:
            # Not in the context of the first hook, which may be cancelled while others wait.
            task = asyncio.get_running_loop().create_task(self._ask(key, messages, seed), context=Context())
            asking = self._pending[key] = _PendingAnswer(task=task)
        asking.waiting += 1
        try:
            answer = await asyncio.shield(asking.task)
        except PolicyError as error:
            raise type(error)(str(error)) from None  # a new error per waiter: a shared traceback would grow
        finally:
            asking.waiting -= 1
            if asking.waiting == 0:
                asking.task.cancel()
                if self._pending.get(key) is asking:
                    del self._pending[key]
        return answer if is_first else replace(answer, usage={})

    async def _ask(self, key: bytes, messages: Sequence[Message], seed: int) -> TextAnswer:
        answer = await self.asked.answer(messages, seed=seed)
        self._kept[key] = answer
        self._chars += len(answer.text or "")
        while len(self._kept) > _MOST_ANSWERS or self._chars > _MOST_CHARS:
            _, oldest = self._kept.popitem(last=False)
            self._chars -= len(oldest.text or "")
        return answer


CallScript = Callable[..., Awaitable[Any]]


class SecondModels:
    """The second models by role. Judges are cached; a simulated user may answer equal questions anew."""

    def __init__(self, served: Mapping[str, TextModel]) -> None:
        self._served = dict(served)
        self._answering: dict[str, AnswerSource] = dict(served)
        if "judge" in served:
            self._answering["judge"] = AnswerCache(asked=served["judge"])
        self._unusable_in: dict[str, set[Hashable]] = {role: set() for role in ROLES}

    @property
    def roles(self) -> Sequence[str]:
        return tuple(self._served)

    def name_of(self, role: str) -> str:
        return self._served[role].model

    def model_for(
        self, role: str, script: Callable[..., Any], item: Any, call: CallScript, hook: Callable[[], str]
    ) -> SecondModel:
        answering = self._answering.get(role)
        if answering is None:

            async def played(messages: Sequence[Any]) -> Any:
                return await call(f"{hook()}: scripted_{role}", script, item, messages)

            answering = ScriptedAnswers(name=f"scripted_{role}", script=played)
        return SecondModel(model=answering, role=role, hook=hook, unusable_in=self._unusable_in[role])

    async def check(self) -> None:
        for role, model in self._served.items():
            try:
                await model.check()
            except ConfigError as error:
                raise ConfigError(f"the {role}'s model server: {error}") from error

    async def aclose(self) -> None:
        for model in self._served.values():
            await model.aclose()
