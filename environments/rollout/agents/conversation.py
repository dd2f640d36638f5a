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

import orjson

from environments.policy.base import Constraint
from environments.policy.inference.written_messages import MessageError, parse_entry
from environments.rollout.agents.dialects import AgentRequest, Refused, arguments_object
from environments.rollout.model_calls import ModelCalls
from environments.rollout.rows import RowBuilder
from environments.trajectory import Kept, Message, Turn
from tools.calls import ToolResult, ToolSpec

FORK = "agent"
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
    history: "History" = field(default_factory=lambda: History(entries=[], parsed=[]))
    tools: tuple[ToolSpec, ...] = ()
    position: int = -1
    has_tools: bool = False
    is_busy: bool = False
    is_rewritten: bool = False
    """Whether the prompt no longer begins with the open row."""
    demands: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    """What the agent demanded of completions, each with the index in `seen` of the message that says it.

    The last one is in force.
    """
    open_turn: Turn | None = None
    """The returned completion that no request has answered yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    entries: list[Any]
    """The messages of a request as JSON."""
    parsed: list[tuple[Message, ...]]

    def messages(self) -> list[Message]:
        return [message for entry in self.parsed for message in entry]


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    thread: Thread
    messages: list[Message]
    """The request's messages, with our ids of calls."""
    history: History
    common: int
    goes_on: bool
    is_reserialised: bool = False
    """Whether the agent returned the last completion in other bytes than it received."""


def opening_length(messages: Sequence[Message]) -> int:
    return next((at + 1 for at, each in enumerate(messages) if each.role == "user"), len(messages))


def opening_key(messages: Sequence[Message]) -> str:
    begin = messages[: opening_length(messages)]
    texts = [each.content if len(each.content) < _LONG_CHARS else _hash(each.content) for each in begin]
    return _hash(json.dumps([[each.role, text] for each, text in zip(begin, texts, strict=True)]))


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass")).hexdigest()


def match(threads: Sequence[Thread], history: History) -> Match | None:
    messages = history.messages()
    found = [_compare(thread, messages, history) for thread in threads]
    # Of several equal conversations, the one that is continued exactly is meant.
    exact = [each for each in found if each.goes_on and not each.thread.is_busy]
    best = max(exact or found, key=lambda each: (each.common, each.goes_on), default=None)
    if best is None or best.thread.is_busy or best.common < opening_length(best.thread.written):
        return None
    return best


def read_history(request: AgentRequest, threads: Sequence[Thread] = ()) -> History:
    """Parse a request's entries; a beginning that a thread has too is taken from there instead.

    The request's own list is emptied afterwards, since the garbage collector would visit copies of the whole
    conversation while the model samples.
    """
    entries, known = request.entries, History(entries=[], parsed=[])
    shared = 0
    for thread in threads:
        if (equal := _equal_entries(thread.history.entries, entries)) > shared:
            shared, known = equal, thread.history
    parsed = known.parsed[:shared]
    try:
        for index in range(shared, len(entries)):
            read = parse_entry(_with_content(entries[index]), request.names[index], index)
            parsed.append(tuple(each.message for each in read))
    except MessageError as error:
        raise Refused(str(error), param=request.names[len(parsed)]) from None
    history = History(entries=[*known.entries[:shared], *entries[shared:]], parsed=parsed)
    entries.clear()
    return history


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


def _compare(thread: Thread, messages: Sequence[Message], history: History) -> Match:
    ids = _Renamed()
    common, differs = 0, False
    for ours, theirs, sampled in zip(thread.written, messages, thread.seen, strict=False):
        if ours is not theirs and not ids.are_equal(_uncut(theirs, ours, sampled), ours):
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
        history=history,
        common=common,
        goes_on=goes_on,
        is_reserialised=goes_on and differs,
    )


def _uncut(theirs: Message, ours: Message, sampled: Message) -> Message:
    """Return a message with our text if it differs by a stop text, or by white space around it."""
    if ours.role != "assistant" or ours.content == sampled.content or ours.content == theirs.content:
        return theirs
    is_same = theirs.content.strip() in (ours.content.strip(), sampled.content.strip())
    return replace(theirs, content=ours.content) if is_same else theirs


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
            if given.name != own.name:
                return False
            written, sampled = given.arguments, own.arguments
            if written != sampled and arguments_object(written) != arguments_object(sampled):
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


def with_answers(turn: Turn, after: Sequence[Message], tools_s: float = 0.0) -> Turn:
    """Return a turn with its results and replies: the messages after it, up to the next assistant message."""
    end = next((at for at, each in enumerate(after) if each.role == "assistant"), len(after))
    names = {call.id: call.name for call in turn.message.tool_calls}
    results: list[ToolResult] = []
    for each in after[:end]:
        if each.role == "tool":
            call_id = each.tool_call_id or ""
            results.append(ToolResult(call_id=call_id, name=names.get(call_id, ""), content=each.content))
    replies = tuple(each for each in after[:end] if each.role != "tool")
    return replace(turn, tool_results=tuple(results), replies=replies, tools_s=tools_s)


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


_WITHDRAWN = "From here on, the demands above on the form of your messages no longer hold."


def write_demand(constraint: Constraint, *, has_tools: bool) -> str:
    """Return a constraint as text for the policy's prompt; empty if it demands nothing."""
    lines: list[str] = []
    if constraint.tool is not None:
        named = f"the tool {constraint.tool}" if constraint.tool else "a tool"
        lines.append(f"From here on, call {named} in each message.")
    if constraint.single_call and has_tools:
        lines.append("From here on, call one tool at most in a message.")
    if constraint.schema is not None:
        which = "each message that calls no tool" if has_tools else "each of your messages"
        is_any = constraint.schema == {"type": "object"}
        schema = "" if is_any else f" that matches this schema:\n{orjson.dumps(constraint.schema).decode()}"
        lines.append(f"From here on, {which} is one JSON object without any other text{schema or '.'}")
    return "\n".join(lines)


def advance(thread: Thread, found: Match, demand: str) -> None:
    """Add a request to its thread, with its demand at the end of the newest message.

    There it never changes what the row begins with, unlike in the system message, and a demand that the
    thread has seen already is not repeated.
    """
    newest, at = found.messages[-1], len(found.messages) - 1
    kept = min(found.common, at)
    if kept < len(thread.seen):  # earlier turns keep their list
        thread.seen = thread.seen[:kept]
        thread.demands = [each for each in thread.demands if each[0] < kept]
    thread.seen.extend(found.messages[kept:])
    if demand != (thread.demands[-1][1] if thread.demands else ""):
        text = "\n\n".join(filter(None, [newest.content, demand or _WITHDRAWN]))
        thread.seen[-1] = replace(newest, content=text)
        thread.demands.append((at, demand))
    thread.written, thread.history = found.messages, found.history
    thread.position = max(len(thread.seen), thread.position + 1)


def new_thread(
    threads: Sequence[Thread], history: History, calls: ModelCalls, prompt_key: str | None
) -> Match:
    messages = history.messages()
    key = opening_key(messages)
    ordinal = sum(each.key == key for each in threads)
    # A seed never depends on the order of arrival. The first thread with the environment's own prompt has
    # the rollout's seed.
    digest = hashlib.blake2b(f"{calls.seed}:{key}:{ordinal}".encode(), digest_size=8).digest()
    is_own = key == prompt_key and ordinal == 0
    seed = calls.seed if is_own else int.from_bytes(digest, "big") % (1 << 31)
    thread = Thread(number=len(threads), rows=calls.another_thread(), seed=seed, key=key)
    return Match(thread=thread, messages=messages, history=history, common=0, goes_on=True)


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
