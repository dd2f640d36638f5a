"""Condensers: what of a long conversation the model still sees before its next turn.

A trajectory is [(c1, o1), (c2, o2), …]: `c_k` is what the model saw, `o_k` the turn that it sampled. Without
a condenser `c_k` is all that came before. A condenser keeps the opening, and drops turns whole: a call never
loses its result.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from environments.trajectory import Message
from tools.errors import ConfigError, ContextOverflow

REFILLED = 0.6
"""Share of its budget that `fit_context` leaves: dropping one turn a call would begin a row for each turn."""

SUMMARY_REQUEST = (
    "The conversation is about to be cut to make room. Sum up what is needed to finish the task: the task's "
    "state, every fact, number and name found so far, what was tried, and what comes next. Call no tool; "
    "answer with the summary alone."
)
SUMMARY_HEADING = "Summary of the conversation so far:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One message of what the model is about to see."""

    message: Message
    index: int | None = None
    """Where it stands in the conversation; `None`: it was written in the place of what stands there."""
    turn: int | None = None
    """The turn that it belongs to, as its message or as an answer; `None`: the opening, or a summary."""

    @property
    def is_opening(self) -> bool:
        """Whether it is of the conversation before the first turn."""
        return self.turn is None and self.index is not None


History = tuple[Entry, ...]
"""What the model is about to see, in order."""


class Asking(Protocol):
    """What a condenser may ask while it decides."""

    async def tokens(self, history: History) -> int:
        """Tokens of the prompt that a history makes, tools included."""
        ...

    async def text_tokens(self, text: str) -> int:
        """Tokens of a text alone."""
        ...

    async def policy_summary(self, history: History, request: str) -> str:
        """The policy's own summary of a history: a turn of kind `summary`, trained and credited.

        Raises:
            Exception: the rollout cannot go on; let it pass.
        """
        ...

    async def model_summary(self, history: History, request: str) -> str:
        """A summary by a second model (`--summariser.base_url`), which nobody trains on.

        Raises:
            SecondModelError: there is none.
        """
        ...


class Condenser(Protocol):
    """Decides what the model sees; asked before each completion."""

    @property
    def name(self) -> str:
        """What the record calls it."""
        ...

    async def condense(self, history: History, asking: Asking) -> History:
        """What the model is to see instead of `history`, or `history` itself.

        Raises:
            ContextOverflow: nothing that may go makes it short enough, so that the rollout ends.
        """
        ...


@dataclass(frozen=True, slots=True)
class keep_last_turns:  # noqa: N801  # read like the functions that they are
    """Keeps the opening and the last `turns` turns. Beyond them, every turn begins a row."""

    turns: int
    name: str = field(default="keep_last_turns", init=False)

    def __post_init__(self) -> None:
        _at_least("keep_last_turns", "turns", self.turns, 1)

    async def condense(self, history: History, asking: Asking) -> History:
        """The history without its oldest turns."""
        return without_oldest(history, len(turns_of(history)) - self.turns)


@dataclass(frozen=True, slots=True)
class fit_context:  # noqa: N801
    """Drops the oldest turns whole where the prompt has more than `max_tokens`, down to 60 % of them.

    The last turn stays where it fits at all. Summaries stay.
    """

    max_tokens: int
    name: str = field(default="fit_context", init=False)

    def __post_init__(self) -> None:
        _at_least("fit_context", "max_tokens", self.max_tokens, 1)

    async def condense(self, history: History, asking: Asking) -> History:
        """The history, short enough.

        Raises:
            ContextOverflow: without any turn it is still too long.
        """
        if await asking.tokens(history) <= self.max_tokens:
            return history
        all_turns = len(turns_of(history))
        dropped = await _fewest(history, asking, int(REFILLED * self.max_tokens), 1, all_turns)
        if dropped == all_turns and all_turns > 1:
            last = without_oldest(history, all_turns - 1)
            dropped -= await asking.tokens(last) <= self.max_tokens
        left = without_oldest(history, dropped)
        await refuse_more(left, asking, self.max_tokens)
        return left


@dataclass(frozen=True, slots=True)
class trim_tool_output:  # noqa: N801
    """Cuts the middle out of every tool result of more than `max_tokens` tokens.

    It is cut before the model first sees it, so that rows go on.
    """

    max_tokens: int
    name: str = field(default="trim_tool_output", init=False)

    def __post_init__(self) -> None:
        _at_least("trim_tool_output", "max_tokens", self.max_tokens, 32)

    async def condense(self, history: History, asking: Asking) -> History:
        """The history with shorter results."""
        return tuple([await self._trimmed(entry, asking) for entry in history])

    async def _trimmed(self, entry: Entry, asking: Asking) -> Entry:
        text = entry.message.content
        if entry.message.role != "tool" or len(text.encode()) <= self.max_tokens:
            return entry  # a token has a byte at least
        tokens = await asking.text_tokens(text)
        kept = len(text)
        shorter = text
        while tokens > self.max_tokens and kept > 0:
            kept = min(int(kept * self.max_tokens / tokens), kept - 1)
            shorter = _without_middle(text, kept)
            tokens = await asking.text_tokens(shorter)
        if shorter is text:
            return entry
        return replace(entry, message=replace(entry.message, content=shorter), index=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class summarise:  # noqa: N801
    """Puts a summary in the place of all turns but the last `keep_last`, when it is due.

    By the policy itself it is a turn of kind `summary`, which is sampled after all that came before, trained,
    and credited like the act that follows it.
    """

    every: int | None = None
    """Turns that a summary replaces, when there are so many; `None`: tokens alone decide."""
    max_tokens: int | None = None
    """Of the prompt; beyond it a summary is due; `None`: turns alone decide."""
    keep_last: int = 1
    """Turns that stay word for word, where they fit."""
    by: Literal["policy", "model"] = "policy"
    request: str = SUMMARY_REQUEST
    """What asks for it."""
    name: str = field(default="summarise", init=False)

    def __post_init__(self) -> None:
        if self.every is None and self.max_tokens is None:
            raise ConfigError("summarise: say when a summary is due, by every=TURNS or max_tokens=TOKENS")
        _at_least("summarise", "every", 1 if self.every is None else self.every, 1)
        _at_least("summarise", "max_tokens", 1 if self.max_tokens is None else self.max_tokens, 1)
        _at_least("summarise", "keep_last", self.keep_last, 0)

    async def condense(self, history: History, asking: Asking) -> History:
        """The history with a summary in the place of its turns, or as it is.

        Raises:
            ContextOverflow: with the summary alone it is still too long.
        """
        turns = len(turns_of(history))
        if not await self._is_due(history, turns, asking):
            return history
        ask = asking.policy_summary if self.by == "policy" else asking.model_summary
        text = await ask(history, self.request)
        opening = tuple(entry for entry in history if entry.is_opening)
        summary = Entry(message=Message(role="user", content=f"{SUMMARY_HEADING}\n\n{text}"))
        kept = without_oldest(history, turns - self.keep_last)
        last = tuple(entry for entry in kept if entry.turn is not None)
        short = (*opening, summary, *last)
        if self.max_tokens is not None and await asking.tokens(short) > self.max_tokens:
            short = (*opening, summary)
            await refuse_more(short, asking, self.max_tokens)
        return short

    async def _is_due(self, history: History, turns: int, asking: Asking) -> bool:
        if not turns:
            if self.max_tokens is not None:
                await refuse_more(history, asking, self.max_tokens)
            return False
        if self.every is not None and turns >= self.every + self.keep_last:
            return True
        return self.max_tokens is not None and await asking.tokens(history) > self.max_tokens


def asks_for_summary(messages: Sequence[Message], condensers: Sequence[Condenser] = ()) -> bool:
    """Whether a conversation ends with a request for a summary: all that a model server sees of it.

    Args:
        messages: what the model sees.
        condensers: those in use; one that has a `request` of its own asks by it.
    """
    requests = {SUMMARY_REQUEST, *(getattr(each, "request", SUMMARY_REQUEST) for each in condensers)}
    return bool(messages) and messages[-1].role == "user" and messages[-1].content in requests


def turns_of(history: History) -> list[int]:
    """The turns that a history holds, oldest first."""
    return list(dict.fromkeys(entry.turn for entry in history if entry.turn is not None))


def without_oldest(history: History, count: int) -> History:
    """The history without its `count` oldest turns, whole; opening and summaries stay."""
    gone = set(turns_of(history)[: max(0, count)])
    return tuple(entry for entry in history if entry.turn not in gone) if gone else history


async def refuse_more(history: History, asking: Asking, max_tokens: int) -> None:
    """Raise ContextOverflow where a history is too long."""
    tokens = await asking.tokens(history)
    if tokens > max_tokens:
        raise ContextOverflow(f"{tokens} prompt tokens are left of a condenser's {max_tokens}")


async def _fewest(history: History, asking: Asking, max_tokens: int, low: int, high: int) -> int:
    """The fewest oldest turns to drop for a prompt of `max_tokens`; `high` where none is enough."""
    while low < high:
        middle = (low + high) // 2
        if await asking.tokens(without_oldest(history, middle)) <= max_tokens:
            high = middle
        else:
            low = middle + 1
    return high


def _without_middle(text: str, kept: int) -> str:
    head = text[: (kept + 1) // 2]
    tail = text[len(text) - kept // 2 :]
    return f"{head}\n[{len(text) - kept} characters left out]\n{tail}"


def _at_least(condenser: str, name: str, value: int, least: int) -> None:
    if type(value) is not int or value < least:
        raise ConfigError(f"{condenser}: {name} is {value!r}; give a whole number from {least} on")
