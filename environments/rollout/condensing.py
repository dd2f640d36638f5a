"""What the model sees of one rollout's conversation: it grows with it, and condensers make it shorter."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import InitVar, dataclass, field, replace
from time import monotonic
from typing import Any, Literal

from environments.containment.hook_calls import HookCalls
from environments.policy.base import CompletionRequest, window_of
from environments.rollout.completion_check import text_problem
from environments.rollout.context import Condenser, Entry, History, name_of
from environments.rollout.failures import reason_of
from environments.rollout.history_check import checked_entries, checked_history
from environments.rollout.model_calls import ModelCalls, Stopped
from environments.rollout.prompt_tokens import PromptTokens
from environments.second_models.text_answer import without_reasoning
from environments.trajectory import Condensed, Kept, Message, StopReason, Turn
from tools.errors import ConfigError, ContextOverflow

Summariser = Callable[[Sequence[Message]], Awaitable[str]]
"""A second model that sums a conversation up, whose last message asks for it."""


@dataclass(slots=True, kw_only=True)
class Condensing:
    """The conversation of one rollout and, of it, what the model sees: condensers decide."""

    models: ModelCalls
    calls: HookCalls
    """What condensers are called through."""
    condensers: Sequence[Condenser]
    count: PromptTokens
    summariser: Summariser
    rollout: str
    """Which it is, for people."""
    opening: InitVar[tuple[Message, ...]]
    conversation: tuple[Message, ...] = field(init=False)
    """All of it, summaries included."""
    spoken: tuple[Message, ...] = field(init=False)
    """What agent and world said: no summaries."""
    said: list[Entry] = field(init=False)
    """The conversation, entry by entry."""
    _history: History = field(init=False)
    _held: History = field(default=(), init=False)
    """What the open row holds."""
    _prompt_tokens: int = field(default=0, init=False)
    """Of the last request."""
    _changed: list[str] = field(default_factory=list[str], init=False)
    """The condensers that have changed something since the last act."""
    _condensed: Condensed | None = field(default=None, init=False)
    _summaries: list[Turn] = field(default_factory=list[Turn], init=False)

    def __post_init__(self, opening: tuple[Message, ...]) -> None:
        self.conversation = self.spoken = opening
        self._history = tuple(Entry(message=message, index=index) for index, message in enumerate(opening))
        self.said = list(self._history)

    def add(self, messages: tuple[Message, ...], turn: int) -> None:
        """What an act, or an answer to it, adds to the conversation."""
        if self.condensers:
            first = len(self.conversation)
            entries = [
                Entry(message=message, index=index, turn=turn)
                for index, message in enumerate(messages, first)
            ]
            self.said += entries
            self._history += tuple(entries)
        self.conversation += messages
        self.spoken += messages

    async def request(self) -> CompletionRequest:
        """What the policy is asked for the next act.

        Raises:
            Stopped: no row has room for it.
        """
        if not self.condensers:
            return self.models.request(self.conversation, position=len(self.conversation))
        return await self._counted(self._request(self._history))

    def rewritten(self) -> str | None:
        """Why the next act does not go on from the open row, where a condenser is the cause."""
        return self._cause(self._history) if self.condensers else None

    def seen_by(self, turn: Turn) -> Turn:
        """The act that the model sampled after `request`, with what it saw."""
        if not self.condensers:
            return turn
        tokens = turn.span.start if self.models.exact else self._prompt_tokens
        done = self._condensed and replace(self._condensed, tokens_after=tokens)
        self._condensed, self._changed = None, []
        return self._noted(turn, self._history, done)

    async def condense(self) -> tuple[Turn, ...]:
        """Ask the condensers; the turns of kind `summary` that they needed, also where the rollout stops.

        `ModelCalls.stopped` says that it does.

        Raises:
            ConfigError: what a condenser gave is no history that a model could see.
        """
        started, before = monotonic(), self._history
        try:
            for condenser in self.condensers:
                await self._asked(condenser)
            if self._changed:
                await self._note(before, started)
        except* ContextOverflow as overflow:
            self.models.stop(StopReason.CONTEXT_OVERFLOW, reason_of(overflow.exceptions[0]))
        except* Stopped:
            if self.models.stopped is None:
                raise  # a condenser's own
        made, self._summaries = tuple(self._summaries), []
        return made

    async def _asked(self, condenser: Condenser) -> None:
        name = name_of(condenser)
        doing = f"condenser {name}"
        where = f"{self.rollout}: {doing}" if self.rollout else doing
        asking = OpenAsking(self, where)
        try:
            given = await self.calls.hook(doing, condenser.condense, self._history, asking)
        finally:
            is_asking = asking.close()
        if self.models.stopped is not None:
            raise Stopped
        if is_asking:
            raise ConfigError(f"{where} ended while its summary was being written; await policy_summary")
        if given is self._history:
            return
        history = checked_history(given, self.said, where)
        if history != self._history:
            self._changed.append(name)
            self._history = history

    async def _note(self, before: History, started: float) -> None:
        tokens = await self.tokens(before)
        self._condensed = Condensed(
            cause=", ".join(self._changed),
            tokens_before=tokens,
            tokens_after=0,
            is_estimate=self.count.is_estimate,
            seconds=max(0.0, monotonic() - started - sum(turn.model_s for turn in self._summaries)),
        )

    # What condensers ask through `OpenAsking`.

    async def tokens(self, history: History) -> int:
        """Of the prompt that it makes."""
        return (await self.count.of(self._request(history))).tokens

    async def policy_summary(self, history: History) -> str:
        """The policy's answer to a history that ends with the request for a summary, which is a turn."""
        request = await self._counted(self._request(history, kind="summary"))
        sampled = await self.models.sample(request, rewritten=self._cause(history))
        turn = self._noted(sampled.turn, history, None)
        self._summaries.append(turn)
        # It is in the conversation, and no act sees it there.
        self.said.append(Entry(message=turn.message, index=len(self.conversation), is_summary=True))
        self.conversation += (turn.message,)
        return without_reasoning(turn.message.content).strip()

    def _request(self, history: History, *, kind: Literal["act", "summary"] = "act") -> CompletionRequest:
        return self.models.request(
            tuple(entry.message for entry in history),
            position=len(self.conversation),
            kind=kind,
            goes_on=self._goes_on(history),
        )

    async def _counted(self, request: CompletionRequest) -> CompletionRequest:
        """The request with its prompt's tokens, so that none is sent that does not fit."""
        size = await self.count.of(request)
        if size.row_tokens >= self.models.budget.max_row_tokens:
            limit = self.models.budget.max_row_tokens
            why = (
                f"{size.row_tokens} prompt tokens leave no room in a row of {limit} (--env.max_token_length)"
            )
            raise self.models.stop(StopReason.CONTEXT_OVERFLOW, why)
        self._prompt_tokens = size.tokens
        return replace(request, prompt_tokens=size.tokens)

    def _goes_on(self, history: History) -> bool:
        """Whether a history begins with what the open row holds."""
        return history[: len(self._held)] == self._held

    def _cause(self, history: History) -> str | None:
        """Why a history does not go on from the open row; `None` where it does."""
        if self._goes_on(history):
            return None
        return f"history: {', '.join(self._changed)}" if self._changed else "history"

    def _noted(self, turn: Turn, history: History, condensed: Condensed | None) -> Turn:
        said = len(self.conversation)
        self._held = (*history, Entry(message=turn.message, index=said, turn=turn.index))
        return replace(turn, context=context_of(history, said), condensed=condensed)


class OpenAsking:
    """What one condenser may ask, until it has given its history."""

    def __init__(self, condensing: Condensing, where: str) -> None:
        self._condensing, self._where = condensing, where
        self._summing = asyncio.Lock()
        self._is_closed = False

    def close(self) -> bool:
        """Take no more questions; whether one that makes a turn is still being asked."""
        self._is_closed = True
        return self._summing.locked()

    @property
    def max_tokens(self) -> int:
        """See `Asking`."""
        models = self._condensing.models
        return models.budget.max_prompt_tokens(window_of(models.policy))

    async def tokens(self, history: Sequence[Entry]) -> int:
        """See `Asking`."""
        return await self._condensing.tokens(self._entries(history))

    async def text_tokens(self, text: str) -> int:
        """See `Asking`."""
        return await self._condensing.count.of_text(self._text(text))

    async def policy_summary(self, history: Sequence[Entry], request: str) -> str:
        """See `Asking`; one after the other, since each is a turn of the same rollout."""
        asked = self._with_request(history, request)
        async with self._summing:
            self._refuse_afterwards()
            return await self._condensing.policy_summary(asked)

    async def model_summary(self, history: Sequence[Entry], request: str) -> str:
        """See `Asking`."""
        asked = self._with_request(history, request)
        return await self._condensing.summariser([entry.message for entry in asked])

    def _with_request(self, history: Sequence[Entry], request: str) -> History:
        self._refuse_afterwards()
        asks = Entry(message=Message(role="user", content=self._text(request)))
        return checked_history([*history, asks], self._condensing.said, f"{self._where}: a summary")

    def _entries(self, history: Sequence[Entry]) -> History:
        self._refuse_afterwards()
        return checked_entries(history, self._condensing.said, f"{self._where}: tokens")

    def _text(self, text: Any) -> str:
        self._refuse_afterwards()
        if (problem := text_problem("what it asks about", text)) is not None:
            raise ConfigError(f"{self._where}: {problem}")
        return text

    def _refuse_afterwards(self) -> None:
        if self._is_closed:
            raise ConfigError(
                f"{self._where} asks after it gave its history; a condenser asks while it decides"
            )


def context_of(history: History, said: int) -> tuple[Kept | Message, ...] | None:
    """A history as a turn keeps it; `None` where it is all of the `said` messages before the turn."""
    parts: list[range | Message] = []
    for entry in history:
        index, last = entry.index, parts[-1] if parts else None
        if index is None:
            parts.append(entry.message)
        elif isinstance(last, range) and last.stop == index:
            parts[-1] = range(last.start, index + 1)
        else:
            parts.append(range(index, index + 1))
    if parts == [range(said)]:
        return None
    return tuple(
        [Kept(start=part.start, end=part.stop) if isinstance(part, range) else part for part in parts]
    )
