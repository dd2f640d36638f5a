"""The history of one rollout that the model sees, shortened by condensers."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import InitVar, dataclass, field, replace
from itertools import pairwise
from time import monotonic
from typing import Any, Literal, cast

from environments.policy.base import CompletionRequest, find_window
from environments.policy.second_models import SecondModel, without_reasoning
from environments.rewards.judge import quoted
from environments.rollout.boundary import reason_of
from environments.rollout.containment.hook_calls import HookCalls
from environments.rollout.context import Condenser, Entry, History, name_of
from environments.rollout.model_calls import ModelCalls, Sampled, Stopped
from environments.rollout.prompt_tokens import PromptTokens
from environments.rollout.rows import text_problem, texts_problem
from environments.trajectory import Condensed, Kept, Message, StopReason, Turn
from tools.errors import ConfigError, ContextOverflow

_ROLES = ("system", "user", "assistant", "tool")


def check_history(given: Any, conversation: Sequence[Entry], where: str) -> History:
    """Return a condenser's history if a model can continue it, and it quotes the conversation correctly."""
    entries = check_entries(given, conversation, where)
    if not entries:
        raise ConfigError(f"{where} gave {given!r:.100}; give the entries that the model is to see")
    indices = [entry.index for entry in entries if entry.index is not None]
    if any(after <= before for before, after in pairwise(indices)):
        raise ConfigError(f"{where} gave messages out of order, or twice: {indices!s:.200}")
    turns = [entry.turn for entry in entries if entry.turn is not None]
    if turns != sorted(turns):
        raise ConfigError(f"{where} gave turns out of order: {turns!s:.200}")
    _refuse_orphans(entries, where)
    if entries[-1].message.role == "assistant" != conversation[-1].message.role:
        raise ConfigError(
            f"{where} gave a history that ends with the agent's own message; end with one that it can answer"
        )
    return entries


def check_entries(given: Any, conversation: Sequence[Entry], where: str) -> History:
    if not isinstance(given, list | tuple):
        raise ConfigError(f"{where} gave {given!r:.100}; give the entries that the model is to see")
    return tuple([_check_entry(entry, conversation, where) for entry in cast("Sequence[Any]", given)])


def _check_entry(entry: Any, conversation: Sequence[Entry], where: str) -> Entry:
    if type(entry) is not Entry or type(cast("Any", entry.message)) is not Message:
        raise ConfigError(f"{where} gave an entry {entry!r:.100}; an entry is a turnwise.condensers.Entry")
    index: Any = entry.index
    if index is None:
        message = entry.message
        if (problem := _problem(message)) is not None:
            raise ConfigError(f"{where} wrote a message that no model can see: {problem}")
        turn: Any = entry.turn
        last = next((said.turn for said in reversed(conversation) if said.turn is not None), -1)
        if turn is not None and (type(turn) is not int or not 0 <= turn <= last):
            raise ConfigError(f"{where} wrote an entry of turn {turn!r:.100}; there are {last + 1} turns")
        return entry if type(entry.is_summary) is bool else replace(entry, is_summary=bool(entry.is_summary))
    if type(index) is not int or not 0 <= index < len(conversation):
        raise ConfigError(
            f"{where} gave an entry with the index {index!r:.100}; the conversation has {len(conversation)} "
            f"messages, and what a condenser writes has index=None"
        )
    said = conversation[index]
    if entry is not said and entry.message != said.message:
        raise ConfigError(
            f"{where} changed message {index} and kept its index; what it writes has index=None"
        )
    return said


def _problem(message: Message) -> str | None:
    if message.role not in _ROLES:
        return f"its role is {message.role!r:.100}; choose one of {', '.join(_ROLES)}"
    if message.tool_calls and message.role != "assistant":
        return f"a message of role {message.role} calls tools"
    if message.role == "tool":
        return text_problem("tool_call_id", message.tool_call_id) or texts_problem(message)
    return texts_problem(message)


def _refuse_orphans(history: History, where: str) -> None:
    waiting: list[str] = []
    caller: int | None = None
    for entry in (*history, None):
        message = None if entry is None else entry.message
        if entry is not None and message is not None and message.role == "tool":
            if message.tool_call_id not in waiting or entry.turn != caller:
                raise ConfigError(
                    f"{where} kept the result of a call {message.tool_call_id!r:.100} without the call, or "
                    f"as another turn's; entry.with_content(text) stays where it belongs"
                )
            waiting.remove(message.tool_call_id)
            continue
        if waiting:
            raise ConfigError(f"{where} kept a call {waiting[0]!r:.100} without its result")
        waiting = [] if message is None else [call.id for call in message.tool_calls]
        caller = None if entry is None else entry.turn


Summariser = Callable[[Sequence[Message]], Awaitable[str]]


@dataclass(slots=True, kw_only=True)
class Condensing:
    """The conversation of one rollout and the history that condensers leave of it."""

    models: ModelCalls
    calls: HookCalls
    condensers: Sequence[Condenser]
    count: PromptTokens
    summariser: Summariser | None
    rollout: str
    opening: InitVar[tuple[Message, ...]]
    entries: list[Entry] = field(init=False)
    _history: History = field(init=False)
    _held: History = field(default=(), init=False)
    """Contents of the open row."""
    _prompt_tokens: int = field(default=0, init=False)
    _changed: list[str] = field(default_factory=list[str], init=False)
    _condensed: Condensed | None = field(default=None, init=False)
    _summaries: list[Turn] = field(default_factory=list[Turn], init=False)

    def __post_init__(self, opening: tuple[Message, ...]) -> None:
        self._history = tuple(Entry(message=message, index=index) for index, message in enumerate(opening))
        self.entries = list(self._history)

    def add(self, messages: tuple[Message, ...], turn: int) -> None:
        added = [
            Entry(message=each, index=index, turn=turn)
            for index, each in enumerate(messages, len(self.entries))
        ]
        self.entries += added
        self._history += tuple(added)

    async def sample(self) -> Sampled:
        """Sample the next act after the condensed history; raises what `ModelCalls.sample` raises."""
        cause, request = self._cause(self._history), self._request(self._history)
        sampled = await self.models.sample(await self._with_size(request), rewritten=cause)
        tokens = sampled.turn.span.start if self.models.exact else self._prompt_tokens
        done = self._condensed and replace(self._condensed, tokens_after=tokens)
        self._condensed, self._changed = None, []
        return replace(sampled, turn=self._hold(sampled.turn, self._history, done))

    async def condense(self) -> tuple[Turn, ...]:
        """Apply the condensers. Return the turns of kind `summary` that they needed."""
        started, before = monotonic(), self._history
        try:
            for condenser in self.condensers:
                await self._apply(condenser)
            if self._changed:
                summaries_s = sum(turn.model_s for turn in self._summaries)
                self._condensed = Condensed(
                    cause=", ".join(self._changed),
                    tokens_before=await self.tokens(before),
                    tokens_after=0,
                    is_estimate=self.count.is_estimate,
                    seconds=max(0.0, monotonic() - started - summaries_s),
                )
        except* ContextOverflow as overflow:
            self.models.stop(StopReason.CONTEXT_OVERFLOW, reason_of(overflow.exceptions[0]))
        except* Stopped:
            if self.models.stopped is None:
                raise  # a condenser's own
        made, self._summaries = tuple(self._summaries), []
        return made

    async def _apply(self, condenser: Condenser) -> None:
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
        history = check_history(given, self.entries, where)
        if history != self._history:
            self._changed.append(name)
            self._history = history

    # Called by condensers, through `OpenAsking`.

    async def tokens(self, history: History) -> int:
        return (await self.count.of(self._request(history))).tokens

    async def policy_summary(self, history: History) -> str:
        """Sample a turn of kind `summary` after a history that ends with the request for it."""
        request = await self._with_size(self._request(history, kind="summary"))
        sampled = await self.models.sample(request, rewritten=self._cause(history))
        turn = self._hold(sampled.turn, history, None)
        self._summaries.append(turn)
        # The conversation has it; acts see only what a condenser makes of its text.
        self.entries.append(Entry(message=turn.message, index=len(self.entries), is_summary=True))
        return without_reasoning(turn.message.content).strip()

    def _request(self, history: History, *, kind: Literal["act", "summary"] = "act") -> CompletionRequest:
        return self.models.request(
            tuple(entry.message for entry in history),
            position=len(self.entries),
            kind=kind,
            goes_on=self._cause(history) is None,
        )

    async def _with_size(self, request: CompletionRequest) -> CompletionRequest:
        size, limit = await self.count.of(request), self.models.budget.max_row_tokens
        if size.row_tokens >= limit:
            why = (
                f"{size.row_tokens} prompt tokens leave no room in a row of {limit} (--env.max_token_length)"
            )
            raise self.models.stop(StopReason.CONTEXT_OVERFLOW, why)
        self._prompt_tokens = size.tokens
        return replace(request, prompt_tokens=size.tokens)

    def _cause(self, history: History) -> str | None:
        if history[: len(self._held)] == self._held:
            return None
        return f"history: {', '.join(self._changed)}" if self._changed else "history"

    def _hold(self, turn: Turn, history: History, condensed: Condensed | None) -> Turn:
        said = len(self.entries)
        self._held = (*history, Entry(message=turn.message, index=said, turn=turn.index))
        parts: list[Kept | Message] = []
        for entry in history:
            index, last = entry.index, parts[-1] if parts else None
            if index is None:
                parts.append(entry.message)
            elif isinstance(last, Kept) and last.end == index:
                parts[-1] = Kept(start=last.start, end=index + 1)
            else:
                parts.append(Kept(start=index, end=index + 1))
        context = None if parts == [Kept(start=0, end=said)] else tuple(parts)
        return replace(turn, context=context, condensed=condensed)


class OpenAsking:
    def __init__(self, condensing: Condensing, where: str) -> None:
        self._condensing, self._where = condensing, where
        self._summing = asyncio.Lock()
        self._is_closed = False

    def close(self) -> bool:
        """Refuse further questions. Return whether a summary by the policy is still being sampled."""
        self._is_closed = True
        return self._summing.locked()

    @property
    def max_tokens(self) -> int:
        budget, window = self._condensing.models.budget, find_window(self._condensing.models.policy)
        room = budget.max_row_tokens if window is None else min(budget.max_row_tokens, window)
        return room - min(budget.max_tokens_per_turn, room // 2)

    async def tokens(self, history: Sequence[Entry]) -> int:
        self._refuse_afterwards()
        entries = check_entries(history, self._condensing.entries, f"{self._where}: tokens")
        return await self._condensing.tokens(entries)

    async def text_tokens(self, text: str) -> int:
        return await self._condensing.count.of_text(self._text(text))

    async def policy_summary(self, history: Sequence[Entry], request: str) -> str:
        asked = self._with_request(history, request)
        async with self._summing:
            self._refuse_afterwards()
            return await self._condensing.policy_summary(asked)

    async def model_summary(self, history: Sequence[Entry], request: str) -> str:
        asked = self._with_request(history, request)
        assert self._condensing.summariser is not None
        return await self._condensing.summariser([entry.message for entry in asked])

    def _with_request(self, history: Sequence[Entry], request: str) -> History:
        asks = Entry(message=Message(role="user", content=self._text(request)))
        return check_history([*history, asks], self._condensing.entries, f"{self._where}: a summary")

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


_NO_SUMMARY = {
    "too_long": "the conversation does not fit the summariser's model",
    "filtered": "the summariser's model filters the conversation",
}


async def model_summary(model: SecondModel, messages: Sequence[Message], *, seed: int) -> str:
    """Return the second model's summary, which may be empty, cut, or a refusal.

    Raises:
        ContextOverflow: if the model rejects the conversation.
        SecondModelError, NoModelError: if there is no answer.
    """
    *conversation, request = messages
    text = "\n\n".join(map(_as_text, conversation))
    question = Message(role="user", content=f"{quoted(text, 'conversation')}\n\n{request.content}")
    answer = await model.ask([question], seed=(seed + len(model.calls)) % 2**31)
    if answer.text is None:
        raise ContextOverflow(
            _NO_SUMMARY.get(answer.problem or "", "the summariser takes no such conversation")
        )
    return answer.text.strip()


def _as_text(message: Message) -> str:
    calls = [f"{call.name}({call.arguments})" for call in message.tool_calls]
    return "\n".join([f"[{message.role}]", *filter(None, [message.content]), *calls])
