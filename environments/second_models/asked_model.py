"""A second model as the hooks of one rollout ask it: what it is asked and answers is recorded."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from environments.second_models.text_answer import LONGEST_ANSWER, Answering, TextAnswer
from environments.time_profile import timed
from environments.trajectory import JudgeCall, Message
from tools.errors import ConfigError, NoModelError

ROLES = ("judge", "user", "summariser")
SCRIPTED = "scripted"
"""What the record calls a script that plays a second model."""


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
    calls: list[JudgeCall] = field(default_factory=list[JudgeCall])

    async def ask(self, messages: Sequence[Message], *, turn: int | None = None, seed: int) -> TextAnswer:
        """The answer, recorded.

        Raises:
            SecondModelError: there is none.
            NoModelError: nobody plays the model.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedAnswers:
    """The hook of an environment that plays a second model offline."""

    name: str
    """`scripted_judge`, say."""
    script: Callable[[Sequence[Message]], Awaitable[Any]]
    """Calls the hook within its limits."""
    model: str = SCRIPTED

    def sampling(self, seed: int) -> Mapping[str, Any]:
        """Nothing: it does not sample."""
        return {}

    async def answer(self, messages: Sequence[Message], *, seed: int) -> TextAnswer:
        """What the hook gives.

        Raises:
            ConfigError: it is no text.
        """
        given = await self.script(messages)
        if not isinstance(given, str):
            raise ConfigError(f"{self.name} gave {given!r:.100}; give the text that the model answers")
        text = _unicode(given[:LONGEST_ANSWER])
        return TextAnswer(text=text, problem=None if text.strip() else "empty")


@dataclass(frozen=True, slots=True, kw_only=True)
class NoModel:
    """Where nobody plays a second model."""

    why: str = "this context was made without one"
    model: str = ""

    def sampling(self, seed: int) -> Mapping[str, Any]:
        """Nothing."""
        return {}

    async def answer(self, messages: Sequence[Message], *, seed: int) -> TextAnswer:
        """Raise NoModelError, which says what can be done."""
        raise NoModelError(f"no model answers: {self.why}")


def _unicode(text: str) -> str:
    """As servers and records take it: agents may write what is no Unicode, and scripts may quote it."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def nobody() -> AskedModel:
    """A model that nobody plays, for a context that is made by hand."""
    return AskedModel(model=NoModel())
