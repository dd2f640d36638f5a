"""What the model sees of one rollout's conversation: it grows with it, and condensers make it shorter."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from time import monotonic
from typing import Any, cast

from environments.containment.hook_calls import HookCalls
from environments.policy.base import CompletionRequest
from environments.rollout.context import Condenser, Entry, History
from environments.rollout.model_calls import ModelCalls, Stopped
from environments.rollout.prompt_tokens import PromptTokens
from environments.trajectory import Condensed, Kept, Message, StopReason, Turn
from tools.errors import ConfigError, ContextOverflow

Summariser = Callable[[Sequence[Message]], Awaitable[str]]
"""A second model that sums a conversation up."""


@dataclass(slots=True, kw_only=True)
class Condensing:
    """The conversation of one rollout and, of it, what the model sees; condensers ask through it."""

    models: ModelCalls
    calls: HookCalls
    """What condensers are called through."""
    condensers: Sequence[Condenser]
    count: PromptTokens
    summariser: Summariser
    conversation: tuple[Message, ...]
    """All of it."""
    _history: History = field(init=False)
    _held: History = field(default=(), init=False)
    """What the open row holds."""
    _prompt_tokens: int = field(default=0, init=False)
    """Of the last request."""
    _condensed: Condensed | None = field(default=None, init=False)
    _summaries: list[Turn] = field(default_factory=list[Turn], init=False)

    def __post_init__(self) -> None:
        self._history = tuple(
            Entry(message=message, index=index) for index, message in enumerate(self.conversation)
        )

    def add(self, messages: tuple[Message, ...], turn: int) -> None:
        """What a turn, or an answer to it, adds to the conversation."""
        if self.condensers:
            first = len(self.conversation)
            self._history += tuple(
                Entry(message=message, index=index, turn=turn)
                for index, message in enumerate(messages, first)
            )
        self.conversation += messages

    async def request(self) -> CompletionRequest:
        """What the policy is asked for the next act.

        Raises:
            Stopped: no row has room for it.
        """
        if not self.condensers:
            return self.models.request(self.conversation, position=len(self.conversation))
        return await self._counted(self._request(self._history))

    def rewritten(self) -> str | None:
        """Why the next turn does not go on from the open row, where a condenser is the cause."""
        if not self.condensers or self._goes_on(self._history):
            return None
        return "history" if self._condensed is None else f"history: {self._condensed.cause}"

    def seen_by(self, turn: Turn) -> Turn:
        """The turn that the model sampled after `request`, with what it saw."""
        if not self.condensers:
            return turn
        tokens = turn.span.start if self.models.exact else self._prompt_tokens
        done = self._condensed and replace(self._condensed, tokens_after=tokens)
        self._condensed = None
        return self._noted(turn, self._history, done)

    async def condense(self) -> tuple[Turn, ...]:
        """Ask the condensers; the turns of kind `summary` that they needed, also where the rollout stops.

        `ModelCalls.stopped` says that it does.

        Raises:
            ConfigError: what a condenser gave is no history that a model could see.
        """
        started, before = monotonic(), self._history
        changed: list[str] = []
        try:
            for condenser in self.condensers:
                given = await self._asked(condenser, self._history)
                if given != self._history:
                    changed.append(condenser.name)
                    self._history = given
            if changed:
                await self._note(", ".join(changed), before, started)
        except ContextOverflow:
            self.models.stopped = self.models.stopped or StopReason.CONTEXT_OVERFLOW
        except Stopped:
            pass
        made, self._summaries = tuple(self._summaries), []
        return made

    # What condensers may ask.

    async def tokens(self, history: History) -> int:
        """See `Asking`."""
        return (await self.count.of(self._request(history))).tokens

    async def text_tokens(self, text: str) -> int:
        """See `Asking`."""
        return await self.count.of_text(text)

    async def policy_summary(self, history: History, request: str) -> str:
        """See `Asking`."""
        asked = (*history, Entry(message=Message(role="user", content=request)))
        rewritten = None if self._goes_on(asked) else "history"
        asking = await self._counted(self._request(asked, kind="summary"))
        sampled = await self.models.sample(asking, rewritten=rewritten)
        turn = self._noted(sampled.turn, asked, None)
        self._summaries.append(turn)
        # It is in the conversation, and no act sees it there.
        self.conversation += (turn.message,)
        return turn.message.content

    async def model_summary(self, history: History, request: str) -> str:
        """See `Asking`."""
        said = [entry.message for entry in history]
        return await self.summariser([*said, Message(role="user", content=request)])

    def _request(self, history: History, *, kind: Any = "act") -> CompletionRequest:
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
            raise self.models.stop(StopReason.CONTEXT_OVERFLOW)
        self._prompt_tokens = size.tokens
        return replace(request, prompt_tokens=size.tokens)

    def _goes_on(self, history: History) -> bool:
        """Whether a history begins with what the open row holds."""
        return history[: len(self._held)] == self._held

    async def _asked(self, condenser: Condenser, history: History) -> History:
        name = condenser.name
        given = await self.calls.hook(f"condenser {name}", condenser.condense, history, self)
        if self.models.stopped is not None:
            raise Stopped
        return checked_history(given, self.conversation, f"condenser {name}")

    async def _note(self, cause: str, before: History, started: float) -> None:
        summaries_s = sum(turn.model_s for turn in self._summaries)
        tokens = await self.tokens(before)
        earlier = self._condensed
        self._condensed = Condensed(
            cause=cause,
            tokens_before=tokens if earlier is None else earlier.tokens_before,
            tokens_after=0,
            is_estimate=self.count.is_estimate,
            seconds=max(0.0, monotonic() - started - summaries_s),
        )

    def _noted(self, turn: Turn, history: History, condensed: Condensed | None) -> Turn:
        self._held = (*history, Entry(message=turn.message, index=len(self.conversation), turn=turn.index))
        return replace(turn, context=context_of(history, len(self.conversation)), condensed=condensed)


def context_of(history: History, said: int) -> tuple[Kept | Message, ...] | None:
    """A history as a turn keeps it; `None` where it is all of the `said` messages before the turn."""
    parts: list[Kept | Message] = []
    for entry in history:
        last = parts[-1] if parts else None
        if entry.index is None:
            parts.append(entry.message)
        elif isinstance(last, Kept) and last.end == entry.index:
            parts[-1] = Kept(start=last.start, end=entry.index + 1)
        else:
            parts.append(Kept(start=entry.index, end=entry.index + 1))
    return None if parts == [Kept(start=0, end=said)] else tuple(parts)


def checked_history(given: Any, conversation: Sequence[Message], where: str) -> History:
    """What a condenser gave, where a model can see it.

    Raises:
        ConfigError: it is empty or no history, says what nobody said, is out of order, or separates a call
            from its result.
    """
    if not isinstance(given, list | tuple) or not given:
        raise ConfigError(f"{where} gave {given!r:.100}; give the entries that the model is to see")
    entries = tuple(cast("Sequence[Any]", given))
    for entry in entries:
        if not isinstance(entry, Entry) or not isinstance(entry.message, Message):  # pyright: ignore[reportUnnecessaryIsInstance]  # user code
            raise ConfigError(f"{where} gave an entry {entry!r:.100}; an entry is a turnwise.Entry")
        if entry.index is not None and not _stands_there(entry, conversation):
            raise ConfigError(
                f"{where} changed message {entry.index} and kept its index; a changed message has index=None"
            )
    indices = [entry.index for entry in entries if entry.index is not None]
    if any(after <= before for before, after in pairwise(indices)):
        raise ConfigError(f"{where} gave messages out of order, or twice: {indices}")
    _refuse_orphans(entries, where)
    return entries


def _stands_there(entry: Entry, conversation: Sequence[Message]) -> bool:
    index = cast("int", entry.index)
    return 0 <= index < len(conversation) and conversation[index] == entry.message


def _refuse_orphans(history: History, where: str) -> None:
    """Raise ConfigError where a call has no result, or a result no call."""
    waiting: list[str] = []
    for entry in (*history, None):
        message = None if entry is None else entry.message
        if message is not None and message.role == "tool":
            if message.tool_call_id not in waiting:
                raise ConfigError(
                    f"{where} kept the result of a call {message.tool_call_id!r} without the call"
                )
            waiting.remove(message.tool_call_id)
            continue
        if waiting:
            raise ConfigError(f"{where} kept a call {waiting[0]!r} without its result")
        waiting = [] if message is None else [call.id for call in message.tool_calls]
