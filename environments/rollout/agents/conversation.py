"""The conversations of one recorded agent: its requests continue, fork or begin threads.

Messages are equal if role, text and calls are: arguments as JSON, missing content as empty, without
reasoning, call ids renamed one to one.
"""

import hashlib
import json
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from environments.policy.inference.written_messages import MessageError, parse_entry
from environments.rollout.agents.dialects import AgentRequest, Refused, arguments_object
from environments.rollout.model_calls import ModelCalls
from environments.rollout.rows import RowBuilder
from environments.trajectory import Kept, Message, Turn
from tools.calls import ToolResult, ToolSpec

FORK = "agent"
_SEED_BITS = 31
_LONG_CHARS = 1_000_000
"""Longer texts are hashed, since their JSON would take ten times the memory."""


@dataclass(slots=True, kw_only=True, eq=False)
class Thread:
    number: int
    rows: RowBuilder
    seed: int
    key: str
    seen: list[Message] = field(default_factory=list[Message])
    """The policy's prompt: its completions as they were sampled."""
    written: list[Message] = field(default_factory=list[Message])
    """The same messages in the agent's form."""
    entries: list[Any] = field(default_factory=list[Any])
    parsed: list[tuple[Message, ...]] = field(default_factory=list[tuple[Message, ...]])
    tools: tuple[ToolSpec, ...] = ()
    position: int = -1
    has_tools: bool = False
    is_busy: bool = False
    is_rewritten: bool = False
    """Whether the prompt no longer begins with the open row."""
    open_turn: Turn | None = None
    """The returned completion that no request has answered yet."""

    @property
    def opening(self) -> int:
        return opening_length(self.written)


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    thread: Thread
    messages: list[Message]
    """The request's messages, with our ids of calls."""
    parsed: list[tuple[Message, ...]]
    common: int
    goes_on: bool
    is_reserialised: bool
    """Whether the agent returned the last completion in other bytes than it received."""


def opening_length(messages: Sequence[Message]) -> int:
    return next((at + 1 for at, each in enumerate(messages) if each.role == "user"), len(messages))


def opening_key(messages: Sequence[Message]) -> str:
    begin = messages[: opening_length(messages)]
    texts = [each.content if len(each.content) < _LONG_CHARS else _hash(each.content) for each in begin]
    return _hash(json.dumps([[each.role, text] for each, text in zip(begin, texts, strict=True)]))


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass")).hexdigest()


def thread_seed(seed: int, key: str, ordinal: int, *, prompt_key: str | None) -> int:
    """Return a thread's seed, from its opening and its ordinal among equal openings.

    It never depends on the order of arrival. The thread of the environment's own prompt has the rollout's
    seed.
    """
    if key == prompt_key and ordinal == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}:{key}:{ordinal}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % (1 << _SEED_BITS)


def match(threads: Sequence[Thread], request: AgentRequest) -> Match | None:
    parsed = _parse(threads, request.entries)
    messages = [message for entry in parsed for message in entry]
    if messages[-1].role == "assistant":
        raise Refused("the last message has role assistant; add a user or tool message", param="messages")
    found = [_compare(thread, messages, parsed) for thread in threads]
    # Of several equal conversations, the one that is continued exactly is meant.
    exact = [each for each in found if each.goes_on and not each.thread.is_busy]
    best = max(exact or found, key=lambda each: (each.common, each.goes_on), default=None)
    if best is None or best.thread.is_busy or best.common < best.thread.opening:
        return None
    return best


def _parse(threads: Sequence[Thread], entries: Sequence[Any]) -> list[tuple[Message, ...]]:
    equal = [_equal_entries(each.entries, entries) for each in threads]
    shared = max(equal, default=0)
    parsed = threads[equal.index(shared)].parsed[:shared] if threads else []
    try:
        for index in range(shared, len(entries)):
            read = parse_entry(_with_content(entries[index]), f"messages[{index}]", index)
            parsed.append(tuple(each.message for each in read))
    except MessageError as error:
        raise Refused(str(error), param=f"messages[{len(parsed)}]") from None
    return parsed


def _with_content(entry: Any) -> Any:
    """Give an assistant message without text and calls, as some clients write it, an empty text."""
    if not isinstance(entry, dict):
        return entry
    fields = cast("dict[str, Any]", entry)
    is_bare = fields.get("role") == "assistant" and fields.get("content") is None
    return {**fields, "content": ""} if is_bare and not fields.get("tool_calls") else fields


def _equal_entries(left: Sequence[Any], right: Sequence[Any]) -> int:
    if right[: len(left)] == left:
        return len(left)
    pairs = zip(left, right, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


def _compare(thread: Thread, messages: Sequence[Message], parsed: list[tuple[Message, ...]]) -> Match:
    ids = _Renamed()
    common, differs = 0, False
    for ours, theirs in zip(thread.written, messages, strict=False):
        if ours is not theirs and not ids.are_equal(theirs, ours):
            break
        common += 1
        differs = ours is not theirs and theirs != ours
    goes_on = common == len(thread.written)
    return Match(
        thread=thread,
        # Messages that were equal are compared by identity the next time.
        messages=[
            *(thread.written if ids.has_renamed else messages)[:common],
            *map(ids.as_handed_out, messages[common:]),
        ],
        parsed=parsed,
        common=common,
        goes_on=goes_on,
        is_reserialised=goes_on and differs,
    )


class _Renamed:
    def __init__(self) -> None:
        self._ours: dict[str, str] = {}
        self._theirs: dict[str, str] = {}
        self.has_renamed = False

    def are_equal(self, theirs: Message, ours: Message) -> bool:
        if theirs.role != ours.role or theirs.content != ours.content:
            return False
        if theirs.role == "tool":
            return self._ours.get(theirs.tool_call_id or "", theirs.tool_call_id) == ours.tool_call_id
        if len(theirs.tool_calls) != len(ours.tool_calls):
            return False
        for given, own in zip(theirs.tool_calls, ours.tool_calls, strict=True):
            if given.name != own.name or not _equal_arguments(given.arguments, own.arguments):
                return False
            if self._ours.setdefault(given.id, own.id) != own.id:
                return False
            if self._theirs.setdefault(own.id, given.id) != given.id:
                return False
            self.has_renamed |= given.id != own.id
        return True

    def as_handed_out(self, message: Message) -> Message:
        named = self._ours.get(message.tool_call_id or "")
        return message if named in (None, message.tool_call_id) else replace(message, tool_call_id=named)


def _equal_arguments(left: str, right: str) -> bool:
    return left == right or arguments_object(left) == arguments_object(right)


def with_answers(turn: Turn, after: Sequence[Message]) -> Turn:
    """Return a turn with its results and replies: the messages after it, up to the next assistant message."""
    end = next((at for at, each in enumerate(after) if each.role == "assistant"), len(after))
    names = {call.id: call.name for call in turn.message.tool_calls}
    results: list[ToolResult] = []
    for each in after[:end]:
        if each.role == "tool":
            call_id = each.tool_call_id or ""
            results.append(ToolResult(call_id=call_id, name=names.get(call_id, ""), content=each.content))
    replies = tuple(each for each in after[:end] if each.role != "tool")
    return replace(turn, tool_results=tuple(results), replies=replies)


def after_turn(thread: Thread, found: Match) -> Sequence[Message]:
    """Return the messages of a request that answer the open turn; empty if the agent dropped the turn."""
    if found.goes_on:
        return found.messages[found.common :]
    ids, last = _Renamed(), thread.written[-1]
    for at in range(len(found.messages) - 1, found.common - 1, -1):
        names = [call.id for call in found.messages[at].tool_calls]
        if ids.are_equal(found.messages[at], last) or (names and names == [c.id for c in last.tool_calls]):
            return list(map(ids.as_handed_out, found.messages[at + 1 :]))
    return ()


def advance(thread: Thread, found: Match, request: AgentRequest) -> None:
    if not found.goes_on:  # earlier turns keep their list
        thread.seen = thread.seen[: found.common]
    thread.seen.extend(found.messages[found.common :])
    thread.written = found.messages
    thread.entries, thread.parsed = request.entries, found.parsed
    thread.position = max(len(thread.seen), thread.position + 1)


def new_thread(
    threads: Sequence[Thread], request: AgentRequest, calls: ModelCalls, prompt_key: str | None
) -> Match:
    parsed = _parse(threads, request.entries)
    messages = [message for entry in parsed for message in entry]
    key = opening_key(messages)
    ordinal = sum(each.key == key for each in threads)
    seed = thread_seed(calls.seed, key, ordinal, prompt_key=prompt_key)
    thread = Thread(number=len(threads), rows=calls.another_thread(), seed=seed, key=key)
    return Match(
        thread=thread, messages=messages, parsed=parsed, common=0, goes_on=True, is_reserialised=False
    )


Seen = tuple[list[Message], int]


def with_contexts(turns: Sequence[Turn], seen: Sequence[Seen], prompt: Sequence[Message]) -> list[Turn]:
    indices: defaultdict[Message, list[int]] = defaultdict(list)
    views: dict[int, _View] = {}
    found: list[Turn] = []
    length, added = 0, prompt
    for turn, (messages, count) in zip(turns, seen, strict=True):
        for each in added:
            indices[each].append(length)
            length += 1
        context = views.setdefault(id(messages), _View(messages)).first(count, indices)
        found.append(turn if context == (Kept(start=0, end=length),) else replace(turn, context=context))
        added = turn.messages
    return found


class _View:
    """The messages of one thread, as parts of the conversation.

    Turns of a thread share their list of messages, which only grows, so each message is located once.
    """

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages
        self._parts: list[Kept | Message] = []
        self._ends = [(0, 0)]
        """Entry n: the number of parts of the first n messages, and their end in the conversation."""

    def first(self, count: int, indices: Mapping[Message, Sequence[int]]) -> tuple[Kept | Message, ...]:
        for message in self._messages[len(self._ends) - 1 : count]:
            end = self._ends[-1][1]
            equal = indices.get(message, ())
            next_equal = bisect_left(equal, end)
            at = equal[next_equal] if next_equal < len(equal) else None
            last = self._parts[-1] if self._parts else None
            if at is None:
                self._parts.append(message)
            elif isinstance(last, Kept) and last.end == at:
                self._parts[-1] = Kept(start=last.start, end=at + 1)
            else:
                self._parts.append(Kept(start=at, end=at + 1))
            self._ends.append((len(self._parts), end if at is None else at + 1))
        parts, end = self._ends[count]
        *before, last = self._parts[:parts]
        return (*before, replace(last, end=end) if isinstance(last, Kept) else last)
