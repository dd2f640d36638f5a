"""A second model as the hooks of one rollout ask it: what it is asked and answers is recorded."""

import asyncio
import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from environments.policy.second_models.text_model import LONGEST_ANSWER, Answering, TextAnswer
from environments.trajectory import JudgeCall, Message
from tools.errors import ConfigError, NoModelError, PolicyError, SecondModelError
from tools.time_profile import timed

ROLES = ("judge", "user", "summariser")
SCRIPTED = "scripted"
"""What the record calls a script that plays a second model."""
_GROUPS_UNTIL_DOWN = 3

_ID_BYTES = 6
"""No agent finds a text that holds the id of the question it stands in, and a model can copy the id."""
_WANTED_ID = '\n\nThe JSON object has one more field, copied exactly: "id": "{}"'
_WANTS_ID = re.compile(re.escape(_WANTED_ID).replace(re.escape("{}"), "([0-9a-f]{12})") + r"\Z")


def question_id(question: Sequence[Message]) -> str:
    """A hash of a question, which no text that stands in it can hold; equal where rewards are rescored."""
    content = json.dumps([[message.role, _unicode(message.content)] for message in question])
    return hashlib.blake2b(content.encode(), digest_size=_ID_BYTES).hexdigest()


def asking_for_id(question: Sequence[Message], wanted: str) -> tuple[Message, ...]:
    """A question whose last message asks for an id in the object of the answer."""
    *before, last = question
    return (*before, replace(last, content=last.content + _WANTED_ID.format(wanted)))


def _without_id(question: Sequence[Message]) -> tuple[Sequence[Message], str | None]:
    """A question as its author wrote it, and the id that it asks for."""
    asks = _WANTS_ID.search(question[-1].content) if question else None
    if asks is None:
        return question, None
    return [replace(each, content=each.content.removesuffix(asks[0])) for each in question], asks[1]


def _with_id(text: str, wanted: str) -> str:
    """A script's answer with the id in its object; unchanged where it holds no object, or several."""
    begin, end = text.find("{"), text.rfind("}") + 1
    try:
        json.loads(text[begin:end])
    except (ValueError, RecursionError):
        return text
    return f'{text[: begin + 1]}"id": "{wanted}", {text[begin + 1 :]}'


@dataclass(slots=True, kw_only=True)
class AskedModel:
    """Made for one rollout, or for a group whose rollouts are over."""

    model: Answering
    role: str = "second model"
    """`judge`, `user` or `summariser`."""
    hook: Callable[[], str] = lambda: ""
    """Which hook runs now."""
    recorded: Mapping[tuple[Message, ...], JudgeCall] = field(
        default_factory=dict[tuple[Message, ...], JudgeCall]
    )
    """Answers of a record, which are taken before anybody is asked."""
    group: Hashable = None
    """Which group asks."""
    unusable_in: set[Hashable] = field(default_factory=set[Hashable], repr=False)
    """Groups of the run in which it gave nothing that could be used, since the last answer that could."""
    calls: list[JudgeCall] = field(default_factory=list[JudgeCall])

    async def ask(self, messages: Sequence[Message], *, turn: int | None = None, seed: int) -> TextAnswer:
        """The answer, recorded.

        Raises:
            SecondModelError: there is none.
            NoModelError: the model has neither server nor script.
        """
        question = tuple(replace(message, content=_unicode(message.content)) for message in messages)
        if (known := self.recorded.get(question)) is not None:
            self.calls.append(known)
            return TextAnswer(text=known.answer)
        hook = self.hook()
        with timed(self.role):
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
        """Called once an answer could be used: the model is not down."""
        self.unusable_in.clear()

    def was_unusable(self, problem: str) -> None:
        """Called once its tries gave nothing that can be used, which the text of an agent may cause.

        Raises:
            SecondModelError: so it was in three groups, with no usable answer between: it counts as down.
        """
        self.unusable_in.add(self.group)
        if len(self.unusable_in) >= _GROUPS_UNTIL_DOWN:
            raise SecondModelError(
                f"the {self.role}'s model counts as down: it gave nothing usable in "
                f"{len(self.unusable_in)} groups, the last time: {problem}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedAnswers:
    """The hook of an environment that plays a second model offline."""

    name: str
    """Such as `scripted_judge`."""
    script: Callable[[Sequence[Message]], Awaitable[Any]]
    """Calls the hook within its limits."""
    model: str = SCRIPTED

    def sampling(self, seed: int) -> Mapping[str, Any]:
        """Nothing: it does not sample."""
        return {}

    async def answer(self, messages: Sequence[Message], *, seed: int) -> TextAnswer:
        """What the hook gives, who is not asked for an id: it is put into the one object of the answer.

        Raises:
            ConfigError: it is no text.
        """
        question, wanted = _without_id(messages)
        given = await self.script(question)
        if not isinstance(given, str):
            raise ConfigError(f"{self.name} gave {given!r:.100}; give the text that the model answers")
        text = _unicode(given[:LONGEST_ANSWER])
        text = text if wanted is None else _with_id(text, wanted)
        return TextAnswer(text=text, problem=None if text.strip() else "empty")


@dataclass(frozen=True, slots=True, kw_only=True)
class NoModel:
    """A second model without server and script."""

    why: str = "this context was made without one"
    model: str = ""

    def sampling(self, seed: int) -> Mapping[str, Any]:
        """Nothing."""
        return {}

    async def answer(self, messages: Sequence[Message], *, seed: int) -> TextAnswer:
        """Raise NoModelError, which names the remedies."""
        raise NoModelError(f"no model answers: {self.why}")


def _unicode(text: str) -> str:
    """As servers and records take it: agents may write what is no Unicode, and scripts may quote it."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def nobody() -> AskedModel:
    """A model without server and script, for a context that is made by hand."""
    return AskedModel(model=NoModel())


_MOST_ANSWERS = 50_000
_MOST_CHARS = 16_000_000
"""Of all answers that are kept together; those that were used last stay."""


@dataclass(slots=True, kw_only=True)
class _Asking:
    task: "asyncio.Task[TextAnswer]"
    waiting: int = 0


@dataclass(kw_only=True, eq=False)
class AnswerCache:
    """A model that gets no question twice; a failure is not kept."""

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


if TYPE_CHECKING:
    from environments.policy.second_models.text_model import TextModel

CallScript = Callable[..., Awaitable[Any]]
"""Calls a hook within its limits: (what it is for people, hook, item, messages)."""


class SecondModels:
    """One of each role; who judges is asked nothing twice, who plays a user may answer anew."""

    def __init__(self, served: "Mapping[str, TextModel]") -> None:
        """Those that have a server, by their role."""
        self._served = dict(served)
        self._answering: dict[str, Answering] = dict(served)
        if "judge" in served:
            self._answering["judge"] = AnswerCache(asked=served["judge"])
        self._unusable_in: dict[str, set[Hashable]] = {role: set() for role in ROLES}

    @property
    def roles(self) -> Sequence[str]:
        """Those that have a server."""
        return tuple(self._served)

    def asked(
        self, role: str, script: Callable[..., Any], item: Any, call: CallScript, hook: Callable[[], str]
    ) -> AskedModel:
        """A model as one rollout asks it.

        Args:
            role: one of `ROLES`.
            script: the hook that plays it where it has no server.
            item: of the rollout.
            call: calls the hook.
            hook: which hook of the rollout runs now.
        """
        answering = self._answering.get(role)
        if answering is None:

            async def played(messages: Sequence[Any]) -> Any:
                return await call(f"{_asking(hook())}: scripted_{role}", script, item, messages)

            answering = ScriptedAnswers(name=f"scripted_{role}", script=played)
        return AskedModel(
            model=answering,
            role=role,
            hook=lambda: _asking(hook()),
            unusable_in=self._unusable_in[role],
        )

    async def check(self) -> None:
        """Raise ConfigError while one of the servers cannot be used; buys no completion."""
        for role, model in self._served.items():
            try:
                await model.check()
            except ConfigError as error:
                raise ConfigError(f"the {role}'s model server: {error}") from error

    async def aclose(self) -> None:
        """Close the connections."""
        for model in self._served.values():
            await model.aclose()


def _asking(doing: str) -> str:
    """The hook that asks, also while its question is being answered."""
    return doing.partition(":")[0]
