"""Condensers: they decide which part of a long conversation the model sees before its next turn.

Without condensers it sees the whole conversation. Condensers keep the opening and drop whole turns, so that a
call never loses its result.
"""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, cast, get_args

from environments.config import AgentEnvConfig
from environments.rollout.items.item_json import stable_text
from environments.trajectory import Message
from tools.errors import ConfigError, ContextOverflow

_LOG = logging.getLogger(__name__)

REFILLED = 0.6
"""Share of its budget that `fit_context` leaves: dropping one turn per call would start a row for each
turn."""

SUMMARY_REQUEST = (
    "The conversation is about to be cut to make room. Sum up what is needed to finish the task: the task's "
    "state, every fact, number and name found so far, what was tried, and what comes next. Call no tool; "
    "answer with the summary alone."
)
SUMMARY_HEADING = "Summary of the conversation so far:"
SummaryBy = Literal["policy", "model"]
_NAME = re.compile(r"[A-Za-z0-9_-]{1,60}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One message of a history."""

    message: Message
    index: int | None = None
    """Index in the conversation; `None`: a condenser wrote it."""
    turn: int | None = None
    """The turn it belongs to, as its message or as an answer; `None`: the opening."""
    is_summary: bool = False
    """Whether it replaces turns; the next summary replaces it."""

    def with_content(self, content: str) -> "Entry":
        return replace(self, message=replace(self.message, content=content), index=None)


History = tuple[Entry, ...]


class Asking(Protocol):
    """Questions that a condenser may ask while it decides, but not afterwards."""

    @property
    def max_tokens(self) -> int:
        """The longest prompt that leaves room for a turn in row and window."""
        ...

    async def tokens(self, history: History) -> int: ...

    async def text_tokens(self, text: str) -> int:
        """Count the tokens of a text."""
        ...

    async def policy_summary(self, history: History, request: str) -> str:
        """Return the policy's own summary: a turn of kind `summary`, trained and credited.

        It may be empty, cut, or a refusal. Tool calls in it are not run.

        Raises:
            Exception: if the rollout ends here; do not catch it.
        """
        ...

    async def model_summary(self, history: History, request: str) -> str:
        """Return a summary by a second model (`--summariser.base_url`), which is not trained."""
        ...


class Condenser(Protocol):
    """Decides what the model sees before each completion. One object serves all rollouts."""

    @property
    def name(self) -> str: ...

    async def condense(self, history: History, asking: Asking) -> Sequence[Entry]:
        """Return the history that the model sees instead of `history`, or `history` itself.

        Dropped entries stay dropped: the next history is this one and the messages since. A condenser that
        asks nothing may be a plain `def`.

        Raises:
            ContextOverflow: if it cannot be made short enough, so that the rollout ends.
        """
        ...


@dataclass(frozen=True, slots=True)
class keep_last_turns:  # noqa: N801  # read like the functions that they are
    """Keeps the opening and the last `turns` turns. From then on, every turn starts a row."""

    turns: int
    name: str = field(default="keep_last_turns", init=False)

    def __post_init__(self) -> None:
        _at_least("keep_last_turns", "turns", self.turns, 1)

    async def condense(self, history: History, asking: Asking) -> History:
        return without_oldest(history, len(turns_of(history)) - self.turns)


@dataclass(frozen=True, slots=True)
class fit_context:  # noqa: N801
    """Drops the oldest turns if the prompt exceeds `max_tokens`, down to 60 % of them.

    Opening and summaries stay, and the last turn if it fits at all.
    """

    max_tokens: int
    """Tokens of a prompt, tools included; less if the row could not hold them and a turn."""
    name: str = field(default="fit_context", init=False)

    def __post_init__(self) -> None:
        _at_least("fit_context", "max_tokens", self.max_tokens, 1)

    async def condense(self, history: History, asking: Asking) -> History:
        budget = min(self.max_tokens, asking.max_tokens)
        if await asking.tokens(history) <= budget:
            return history
        turns = len(turns_of(history))
        low, high = min(1, turns), turns
        while low < high:
            middle = (low + high) // 2
            if await asking.tokens(without_oldest(history, middle)) <= int(REFILLED * budget):
                high = middle
            else:
                low = middle + 1
        dropped = high
        if dropped == turns > 1 and await asking.tokens(without_oldest(history, turns - 1)) <= budget:
            dropped = turns - 1
        return await within(without_oldest(history, dropped), asking, budget)


@dataclass(frozen=True, slots=True)
class trim_tool_output:  # noqa: N801
    """Cuts the middle out of every tool result of more than `max_tokens` tokens.

    Results are cut before the model first sees them, so that rows can be extended.
    """

    max_tokens: int
    name: str = field(default="trim_tool_output", init=False)

    def __post_init__(self) -> None:
        _at_least("trim_tool_output", "max_tokens", self.max_tokens, 32)

    async def condense(self, history: History, asking: Asking) -> History:
        return tuple([await self._trim(entry, asking) for entry in history])

    async def _trim(self, entry: Entry, asking: Asking) -> Entry:
        text = entry.message.content
        if entry.message.role != "tool" or len(text.encode()) <= self.max_tokens:
            return entry  # a token has a byte at least
        shorter, kept = text, len(text)
        while (tokens := await asking.text_tokens(shorter)) > self.max_tokens and kept > 0:
            kept = min(kept * self.max_tokens // tokens, kept - 1)
            head = text[: (kept + 1) // 2]
            tail = text[len(text) - kept // 2 :]
            shorter = f"{head}\n[{len(text) - kept} characters left out]\n{tail}"
        return entry if shorter is text else entry.with_content(shorter)


@dataclass(frozen=True, slots=True, kw_only=True)
class summarise:  # noqa: N801
    """Replaces all turns but the last `keep_last` by a summary when it is due.

    A summary by the policy is a turn of kind `summary`, which is sampled after the whole history, trained,
    and credited like the act that follows it.
    """

    every: int | None = None
    """Number of turns that a summary replaces; `None`: tokens alone decide."""
    max_tokens: int | None = None
    """Tokens of the prompt beyond which a summary is due; `None`: turns alone decide."""
    keep_last: int = 1
    """Number of turns that stay word for word, if they fit."""
    by: SummaryBy = "policy"
    request: str = SUMMARY_REQUEST
    name: str = field(default="summarise", init=False)

    def __post_init__(self) -> None:
        if self.every is None and self.max_tokens is None:
            raise ConfigError("summarise: say when a summary is due, by every=TURNS or max_tokens=TOKENS")
        _at_least("summarise", "every", 1 if self.every is None else self.every, 1)
        _at_least("summarise", "max_tokens", 1 if self.max_tokens is None else self.max_tokens, 1)
        _at_least("summarise", "keep_last", self.keep_last, 0)
        if self.by not in get_args(SummaryBy):
            raise ConfigError(f"summarise: by is {self.by!r:.100}; choose from {get_args(SummaryBy)}")
        if not isinstance(self.request, str) or not self.request.strip():  # pyright: ignore[reportUnnecessaryIsInstance]  # user code
            raise ConfigError(f"summarise: request is {self.request!r:.100}; give the text that asks for it")

    async def condense(self, history: History, asking: Asking) -> History:
        budget = None if self.max_tokens is None else min(self.max_tokens, asking.max_tokens)
        turns = len(turns_of(history))
        is_over = budget is not None and await asking.tokens(history) > budget
        if not (is_over and turns) and (self.every is None or turns < self.every + self.keep_last):
            return await within(history, asking, budget if is_over else None)
        ask = asking.policy_summary if self.by == "policy" else asking.model_summary
        text = f"{SUMMARY_HEADING}\n\n{await ask(history, self.request)}"
        summary = Entry(message=Message(role="user", content=text), is_summary=True)
        opening = [entry for entry in history if entry.turn is None and not entry.is_summary]
        last = [entry for entry in without_oldest(history, turns - self.keep_last) if entry.turn is not None]
        short = (*opening, summary, *last)
        if budget is not None and await asking.tokens(short) > budget:
            short = (*opening, summary)
        return await within(short, asking, budget)


def asks_for_summary(messages: Sequence[Message], condensers: Sequence[Condenser] = ()) -> bool:
    """Whether a conversation ends with a request for a summary, by the text of a condenser's `request`."""
    requests = {SUMMARY_REQUEST, *(getattr(each, "request", SUMMARY_REQUEST) for each in condensers)}
    return bool(messages) and messages[-1].role == "user" and messages[-1].content in requests


def turns_of(history: History) -> list[int]:
    return list(dict.fromkeys(entry.turn for entry in history if entry.turn is not None))


def without_oldest(history: History, count: int) -> History:
    gone = set(turns_of(history)[: max(0, count)])
    return tuple(entry for entry in history if entry.turn not in gone) if gone else history


async def within(history: History, asking: Asking, max_tokens: int | None) -> History:
    if max_tokens is not None and (tokens := await asking.tokens(history)) > max_tokens:
        raise ContextOverflow(
            f"a prompt of {tokens} tokens, which cannot be made shorter, is over {max_tokens}"
        )
    return history


def name_of(condenser: Any) -> str:
    name: object = getattr(condenser, "name", None)
    condense: object = None if isinstance(condenser, type) else getattr(condenser, "condense", None)
    if not callable(condense):
        raise ConfigError(
            f"{condenser!r:.100} is not a condenser; give one such as fit_context(2048), or an object with a "
            f"`name` and `async def condense(self, history, asking)`"
        )
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"{condenser!r:.100} has the name {name!r:.100}; a condenser is called by 1 to 60 letters of "
            f"ASCII, digits, `_` and `-`"
        )
    return name


def _at_least(condenser: str, name: str, value: int, least: int) -> None:
    if type(value) is not int or value < least:
        raise ConfigError(f"{condenser}: {name} is {value!r}; give a whole number from {least} on")


_KEPT_TURNS = 8
_NONE = "none"


def _summarise(config: AgentEnvConfig, by: SummaryBy) -> Condenser:
    max_tokens = config.condenser_tokens or config.max_token_length * 3 // 4
    return summarise(every=config.condenser_turns, max_tokens=max_tokens, by=by)


_NAMED: Mapping[str, Callable[[AgentEnvConfig], Condenser]] = {
    "trim_tool_output": lambda config: trim_tool_output(config.condenser_tool_tokens),
    "keep_last_turns": lambda config: keep_last_turns(config.condenser_turns or _KEPT_TURNS),
    "fit_context": lambda config: fit_context(
        config.condenser_tokens or max(1, config.max_token_length - config.max_tokens_per_turn)
    ),
    "summarise": lambda config: _summarise(config, "policy"),
    "summarise_by_model": lambda config: _summarise(config, "model"),
}
_READS: Mapping[str, Sequence[str]] = {
    "trim_tool_output": ("condenser_tool_tokens",),
    "keep_last_turns": ("condenser_turns",),
    "fit_context": ("condenser_tokens",),
    "summarise": ("condenser_turns", "condenser_tokens"),
    "summarise_by_model": ("condenser_turns", "condenser_tokens"),
}


def env_condensers(config: AgentEnvConfig, own: Any, *, env: str) -> tuple[Condenser, ...]:
    """Return the condensers that `--env.condenser` names, or else those of the class (`own`).

    Raises:
        ConfigError: if one cannot be used.
    """
    if config.condenser is not None:
        return _by_name(config.condenser, config)
    for setting, readers in _unread(config, ()):
        raise ConfigError(f"{setting} sets nothing without --env.condenser; choose from {readers}")
    several = cast("Sequence[Any]", own if isinstance(own, list | tuple) else (own,))
    given = tuple(each for each in several if each is not None)
    for each in given:
        try:
            name_of(each)
        except ConfigError as error:
            raise ConfigError(f"environment {env!r}: {error}") from None
    return given


def condenser_facts(condensers: Sequence[Condenser]) -> dict[str, str]:
    """Return the facts of condensers for an experiment's fingerprint; their code is covered separately."""
    facts: dict[str, str] = {}
    for number, condenser in enumerate(condensers, 1):
        facts[f"condenser {number}"] = stable_text([type(condenser).__qualname__, name_of(condenser)])
        for name, value in _fields(condenser, ()).items():
            facts[f"condenser {number} {name}"] = stable_text(value)
    return facts


def _fields(condenser: Condenser, around: tuple[object, ...]) -> dict[str, Any]:
    slots = [name for cls in type(condenser).__mro__ for name in getattr(cls, "__slots__", ())]
    names = dict.fromkeys((*slots, *getattr(condenser, "__dict__", ())))
    within = (*around, condenser)
    return {name: _fact(getattr(condenser, name, None), within) for name in names if name != "name"}


def _fact(value: Any, around: tuple[object, ...]) -> Any:
    if isinstance(value, list | tuple):
        return [_fact(each, around) for each in cast("Sequence[Any]", value)]
    if isinstance(value, type) or not callable(getattr(value, "condense", None)):
        return value
    is_around = any(value is each for each in around)
    return [type(value).__qualname__, {} if is_around else _fields(value, around)]


def _by_name(names: Sequence[str], config: AgentEnvConfig) -> tuple[Condenser, ...]:
    for name in names:
        if name not in (*_NAMED, _NONE):
            raise ConfigError(f"no condenser {name!r:.100}; choose from {', '.join(_NAMED)}, {_NONE}")
        if names.count(name) > 1:
            raise ConfigError(f"--env.condenser names {name} {names.count(name)} times; once is enough")
    if not names:
        raise ConfigError(f"--env.condenser names nothing; choose from {', '.join(_NAMED)}, {_NONE}")
    if _NONE in names and len(names) > 1:
        raise ConfigError(
            f"--env.condenser names {_NONE} beside {len(names) - 1} others; choose one or the other"
        )
    if config.condenser_tokens is not None and config.condenser_tokens >= config.max_token_length:
        raise ConfigError(
            f"--env.condenser_tokens {config.condenser_tokens} leaves no room for a turn in a row of "
            f"--env.max_token_length {config.max_token_length}"
        )
    named = tuple(_NAMED[name](config) for name in names if name != _NONE)
    for setting, readers in _unread(config, names) if named else ():
        # No error: a settings file may keep settings for another condenser.
        _LOG.warning(
            "%s sets nothing with --env.condenser %s; it is for %s", setting, ",".join(names), readers
        )
    return named


def _unread(config: AgentEnvConfig, names: Sequence[str]) -> list[tuple[str, str]]:
    read = {setting for name in names for setting in _READS[name]}
    given = {
        setting: f"--env.{setting} {getattr(config, setting)}"
        for settings in _READS.values()
        for setting in settings
        if getattr(config, setting) != type(config).model_fields[setting].default
    }
    return [
        (text, ", ".join(name for name, settings in _READS.items() if setting in settings))
        for setting, text in given.items()
        if setting not in read
    ]
