"""The conversations of one recorded agent, as its requests show them: threads that go on, fork or begin.

Two messages are equal, whatever client wrote them, when role, text and calls are: arguments as JSON, no
content as an empty one, reasoning left out, ids of calls renamed one to one.
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
"""The cause of a fork: the agent rewrote what its model had seen."""
_SEED_BITS = 31
_LONG_CHARS = 1_000_000
"""Of a text whose JSON would take ten times its memory."""


@dataclass(slots=True, kw_only=True, eq=False)
class Thread:
    """One conversation of an agent; it has one request in flight at most."""

    number: int
    rows: RowBuilder
    seed: int
    key: str
    """Of its opening."""
    seen: list[Message] = field(default_factory=list[Message])
    """What the policy sees: what it sampled, as it sampled it."""
    written: list[Message] = field(default_factory=list[Message])
    """The same messages as the agent has them."""
    entries: list[Any] = field(default_factory=list[Any])
    """The JSON of its last request's messages."""
    parsed: list[tuple[Message, ...]] = field(default_factory=list[tuple[Message, ...]])
    """What each of them holds."""
    tools: tuple[ToolSpec, ...] = ()
    position: int = -1
    """Of its last request, see `CompletionRequest`."""
    has_tools: bool = False
    """Whether one of its requests has offered tools."""
    is_busy: bool = False
    is_rewritten: bool = False
    """Whether its open row does not begin like what the policy sees."""
    open_turn: Turn | None = None
    """Handed out, and not answered yet."""

    @property
    def opening(self) -> int:
        """How many messages there are up to the first user message."""
        return opening_length(self.written)


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Where a request belongs."""

    thread: Thread
    messages: list[Message]
    """Of the request; calls have the ids that they were handed out with."""
    parsed: list[tuple[Message, ...]]
    common: int
    """How many of them the thread has."""
    goes_on: bool
    """Whether that is all of the thread."""
    is_reserialised: bool
    """Whether the agent has written the last completion in other bytes than it was handed out in."""


def opening_length(messages: Sequence[Message]) -> int:
    """How many messages there are up to the first user message, or all."""
    return next((at + 1 for at, each in enumerate(messages) if each.role == "user"), len(messages))


def opening_key(messages: Sequence[Message]) -> str:
    """A hash of the messages up to the first user message."""
    begin = messages[: opening_length(messages)]
    texts = [each.content if len(each.content) < _LONG_CHARS else _hash(each.content) for each in begin]
    return _hash(json.dumps([[each.role, text] for each, text in zip(begin, texts, strict=True)]))


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass")).hexdigest()


def thread_seed(seed: int, key: str, ordinal: int, *, prompt_key: str | None) -> int:
    """The seed of a thread, from its opening and its ordinal among equal openings, never from arrival order.

    The thread that begins with the environment's own prompt has the rollout's seed.
    """
    if key == prompt_key and ordinal == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}:{key}:{ordinal}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % (1 << _SEED_BITS)


def match(threads: Sequence[Thread], request: AgentRequest) -> Match | None:
    """The thread that a request goes on with, or forks; `None`: it begins another.

    Raises:
        Refused: a message cannot be taken.
    """
    parsed = _parsed(threads, request.entries)
    messages = [message for entry in parsed for message in entry]
    if messages[-1].role == "assistant":
        raise Refused("the last message has role assistant; add a user or tool message", param="messages")
    found = [_compared(thread, messages, parsed) for thread in threads]
    # Of equal conversations side by side one may be ahead: the one that is continued exactly is meant.
    exact = [each for each in found if each.goes_on and not each.thread.is_busy]
    best = max(exact or found, key=lambda each: (each.common, each.goes_on), default=None)
    if best is None or best.thread.is_busy or best.common < best.thread.opening:
        return None
    return best


def _parsed(threads: Sequence[Thread], entries: Sequence[Any]) -> list[tuple[Message, ...]]:
    """What each entry holds; what a thread has read before is the same object."""
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
    """An assistant message that says and calls nothing, as a client may write it, with an empty text."""
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


def _compared(thread: Thread, messages: Sequence[Message], parsed: list[tuple[Message, ...]]) -> Match:
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
        # What was compared once is the same object the next time.
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
        """Whether two messages say the same; notes the names of their calls."""
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
        """A message with the ids that its calls were handed out with."""
        named = self._ours.get(message.tool_call_id or "")
        return message if named in (None, message.tool_call_id) else replace(message, tool_call_id=named)


def _equal_arguments(left: str, right: str) -> bool:
    return left == right or arguments_object(left) == arguments_object(right)


def answered(turn: Turn, after: Sequence[Message]) -> Turn:
    """A turn with its results and replies: the messages that follow it, up to another of an assistant."""
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
    """What of a request answers the open turn of its thread; nothing where the agent forgot the turn."""
    if found.goes_on:
        return found.messages[found.common :]
    ids, last = _Renamed(), thread.written[-1]
    for at in range(len(found.messages) - 1, found.common - 1, -1):
        names = [call.id for call in found.messages[at].tool_calls]
        if ids.are_equal(found.messages[at], last) or (names and names == [c.id for c in last.tool_calls]):
            return list(map(ids.as_handed_out, found.messages[at + 1 :]))
    return ()


def advance(thread: Thread, found: Match, request: AgentRequest) -> None:
    """Take the messages of a request as those of its thread, which the completion follows."""
    if not found.goes_on:  # turns before keep the list that they were taken in
        thread.seen = thread.seen[: found.common]
    thread.seen.extend(found.messages[found.common :])
    thread.written = found.messages
    thread.entries, thread.parsed = request.entries, found.parsed
    thread.position = max(len(thread.seen), thread.position + 1)


def new_thread(
    threads: Sequence[Thread], request: AgentRequest, calls: ModelCalls, prompt_key: str | None
) -> Match:
    """A new thread for a request."""
    parsed = _parsed(threads, request.entries)
    messages = [message for entry in parsed for message in entry]
    key = opening_key(messages)
    ordinal = sum(each.key == key for each in threads)
    seed = thread_seed(calls.seed, key, ordinal, prompt_key=prompt_key)
    thread = Thread(number=len(threads), rows=calls.another_thread(), seed=seed, key=key)
    return Match(
        thread=thread, messages=messages, parsed=parsed, common=0, goes_on=True, is_reserialised=False
    )


Seen = tuple[list[Message], int]
"""What a policy saw before a turn: so many of these messages."""


def with_contexts(turns: Sequence[Turn], seen: Sequence[Seen], prompt: Sequence[Message]) -> list[Turn]:
    """Return the turns with what the policy saw, where that is not all that the trajectory has before."""
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

    Turns of one thread share their list of messages, which only grows, so each message is looked for once.
    """

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages
        self._parts: list[Kept | Message] = []
        """Stretches of the conversation, and messages that it lacks as they are."""
        self._ends = [(0, 0)]
        """Of the first 0, 1, 2, … messages: the number of parts, and where in the conversation they end."""

    def first(self, count: int, indices: Mapping[Message, Sequence[int]]) -> tuple[Kept | Message, ...]:
        """Return the first messages, of which the conversation has those in `indices`."""
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
