"""The `Renderer` protocol and our own format: ChatML with tools.

Each message is encoded on its own in fixed pieces, and a prompt is their concatenation. So later prompts
contain exactly the ids that were sampled, and a prompt costs only its new messages. Text never becomes a
control token.
"""

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from itertools import chain, pairwise
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple, Protocol, TypeVar

from tokenizers import AddedToken, Tokenizer

from environments.policy.rendering.hermes import CALL, JsonCall, make_call, read_hermes_calls, read_json_call
from environments.trajectory import Message
from tools.calls import ToolCall, ToolSpec
from tools.errors import ConfigError, ContextOverflow
from tools.time_profile import measure


class CannotExtendError(Exception):
    """A row cannot be extended; the text is a short cause, which is counted."""


class Renderer(Protocol):
    """Renders the conversations of one model. Message text never becomes a control token."""

    @property
    def name(self) -> str: ...

    @property
    def vocabulary_size(self) -> int: ...

    @property
    def stop_ids(self) -> tuple[int, ...]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def text_ids(self, text: str) -> tuple[int, ...]:
        """Return the ids of a message's text alone."""
        ...

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """Return the ids of a conversation, up to the start of the next assistant message."""
        ...

    def extend(
        self, sampled: Sequence[int], messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> tuple[int, ...]:
        """Return the ids after a sampled turn, up to the start of the next assistant message.

        `sampled` may lack a stop token; `messages` are tool results and replies.

        Raises:
            CannotExtendError: if the format cannot extend the turn without dropping sampled ids.
        """
        ...

    def parse(self, token_ids: Sequence[int], tools: Sequence[ToolSpec]) -> Message: ...


def first_stop(ids: Sequence[int], stop_ids: Collection[int]) -> int | None:
    stops = frozenset(stop_ids)
    return None if stops.isdisjoint(ids) else list(map(stops.__contains__, ids)).index(True)


THINK: Final = ("<think>", "</think>")

_CALL_START = '\n{"name": '
_CALL_MIDDLE = ', "arguments": '
_CALL_END = "}\n"
_DECODER = json.JSONDecoder()


class Section(NamedTuple):
    marker: str
    text: str
    start: int
    end: int


def message_of(sections: Sequence[Section]) -> Message:
    """Return the message of a turn; malformed or unclosed blocks become calls with that status."""
    reasoning, sections = _split_reasoning(sections)
    content = ""
    calls: list[ToolCall] = []
    for index, section in enumerate(sections):
        closed = index + 1 < len(sections) and sections[index + 1].marker == CALL[1]
        if section.marker == CALL[0]:
            content = content if calls else content.removesuffix("\n")
            name, arguments, status = _parse_own_spacing(section.text) or read_json_call(section.text.strip())
            call = ToolCall(
                id=f"call_{len(calls)}",
                name=name,
                arguments=arguments,
                status=status if closed else "unclosed_block",
                span=(section.start, section.end + closed),
            )
            calls.append(call)
        elif section.marker == CALL[1] and index and sections[index - 1].marker == CALL[0]:
            content += section.text if section.text != "\n" else ""
        else:
            content += section.marker + section.text
    return Message(role="assistant", content=content, reasoning=reasoning, tool_calls=tuple(calls))


def write_call(call: ToolCall) -> str:
    return (
        f"{_CALL_START}{json.dumps(call.name, ensure_ascii=False)}{_CALL_MIDDLE}{call.arguments}{_CALL_END}"
    )


def _parse_own_spacing(text: str) -> JsonCall | None:
    if not (text.startswith(_CALL_START) and text.endswith(_CALL_END)):
        return None
    try:
        name, end = _DECODER.raw_decode(text, len(_CALL_START))
    except (json.JSONDecodeError, RecursionError):
        return None
    if not isinstance(name, str) or not text.startswith(_CALL_MIDDLE, end):
        return None
    return make_call(name, text[end + len(_CALL_MIDDLE) : len(text) - len(_CALL_END)])


def _split_reasoning(sections: Sequence[Section]) -> tuple[str | None, Sequence[Section]]:
    if not sections or sections[0].marker != THINK[0]:
        return None, sections
    close = next(
        (index for index, section in enumerate(sections) if section.marker == THINK[1]), len(sections)
    )
    inside = sections[0].text + "".join(each.marker + each.text for each in sections[1:close])
    if close == len(sections):
        return inside.removeprefix("\n"), []
    after = sections[close]
    answer = Section("", after.text.removeprefix("\n\n"), after.start + 1, after.end)
    return inside.removeprefix("\n").removesuffix("\n"), [answer, *sections[close + 1 :]]


_ENTRY_TOKENS = 64


class TokenCache:
    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._tokens = 0
        self._entries: OrderedDict[Hashable, tuple[int, ...]] = OrderedDict()
        self._lock = Lock()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries

    def get(self, key: Hashable, make: Callable[[], tuple[int, ...]]) -> tuple[int, ...]:
        with self._lock:
            if (known := self._entries.get(key)) is not None:
                self._entries.move_to_end(key)
                return known
        ids = make()  # not under the lock: other threads encode meanwhile
        with self._lock:
            if key not in self._entries:
                self._entries[key] = ids
                self._tokens += len(ids) + _ENTRY_TOKENS
            while self._tokens > self._max_tokens:
                _, dropped = self._entries.popitem(last=False)
                self._tokens -= len(dropped) + _ENTRY_TOKENS
        return ids


EMBEDDED_TOKENIZER_DIR: Final = Path(__file__).parent / "embedded_tokenizer"
"""A byte-level BPE of 2,048 tokens, which `transformers.AutoTokenizer` can load too."""
EMBEDDED: Final = "embedded"


class TokenizerError(ConfigError):
    pass


def load_tokenizer(name: str) -> Tokenizer:
    """Load `embedded`, a local folder or a Hugging Face name."""
    if name == EMBEDDED or Path(name).is_dir():
        path = (EMBEDDED_TOKENIZER_DIR if name == EMBEDDED else Path(name)) / "tokenizer.json"
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(
                f"no tokenizer at {path}: {error.strerror}; give a folder that has one"
            ) from error
        try:
            return Tokenizer.from_str(text)
        except Exception as error:
            raise ConfigError(f"{path} is not a tokenizer of the `tokenizers` library: {error}") from error
    if name.startswith((".", "/", "~")):
        raise ConfigError(f"no tokenizer folder {name}; give one with a tokenizer.json, or `embedded`")
    try:
        return Tokenizer.from_pretrained(name)
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise TokenizerError(
            f"no tokenizer {name!r}: {reason}; give `embedded`, a folder with a tokenizer.json, or a "
            f"Hugging Face name"
        ) from error


START: Final = "<|im_start|>"
STOP: Final = "<|im_end|>"
STOPS: Final = (STOP, "<|endoftext|>")
RESPONSE: Final = ("<tool_response>", "</tool_response>")
TOOLS: Final = ("<tools>", "</tools>")
MARKERS: Final = ("<|endoftext|>", START, STOP, *CALL, *RESPONSE, *TOOLS, *THINK)


def tools_parts(system: str, signatures: Sequence[str]) -> tuple[str, ...]:
    """Return the pieces of a system message with tools; markers are pieces of their own."""
    opening = f"{system}\n\n" if system else ""
    listed = "\n".join(signatures)
    return (
        f"{opening}# Tools\n\nYou may call these functions. Their signatures:\n",
        TOOLS[0],
        f"\n{listed}\n",
        TOOLS[1],
        "\n\nFor each call, write a JSON object with the name and the arguments between tool_call tags:\n",
        CALL[0],
        '\n{"name": <name>, "arguments": <arguments>}\n',
        CALL[1],
    )


LONG_CHARS = 10_000
"""Characters that take about 10 ms to encode; more are encoded in a thread."""
_CACHED_TOKENS = 1_000_000


class ChatMLRenderer:
    """Renders ChatML with any tokenizer; markers that it lacks become ordinary text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Copy `tokenizer`, so that its settings cannot change our ids."""
        self._tokenizer: Tokenizer = Tokenizer.from_str(tokenizer.to_str())
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        added = self._tokenizer.get_added_tokens_decoder()
        # A model's own `<tool_call>` may not be special, but must be a control token here.
        self._tokenizer.add_special_tokens(  # pyright: ignore[reportUnknownMemberType] - its stub says `list`
            [AddedToken(token.content, special=True, normalized=False) for token in added.values()]
        )
        self._tokenizer.encode_special_tokens = True
        self._control = {token.content: (token_id,) for token_id, token in added.items()}
        self._markers = {ids[0]: marker for marker, ids in self._control.items() if marker in MARKERS}
        self._cache = TokenCache(_CACHED_TOKENS)
        self.stop_ids = tuple(self._control[marker][0] for marker in STOPS if marker in self._control)
        self.vocabulary_size = max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1

    @classmethod
    @cache
    def embedded(cls) -> "ChatMLRenderer":
        return cls(load_tokenizer(EMBEDDED))

    @classmethod
    def load(cls, name: str) -> "ChatMLRenderer":
        return cls.embedded() if name == EMBEDDED else cls(load_tokenizer(name))

    @property
    def name(self) -> str:
        return "chatml"

    @property
    def missing_markers(self) -> tuple[str, ...]:
        return tuple(marker for marker in (START, STOP) if marker not in self._control)

    @cached_property
    def longest_token(self) -> int:
        return max(len(token.encode()) for token in self._tokenizer.get_vocab(with_added_tokens=False))

    def chars_to_encode(self, messages: Sequence[Message]) -> int:
        cached = self._cache
        return count_chars(
            [each for each in messages if ("message", each) not in cached and ("body", each) not in cached]
        )

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        return _concat(*self._prompt_parts(messages, tools))

    def prompt_tokens(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> int:
        return sum(map(len, self._prompt_parts(messages, tools)))

    def completion_ids(self, message: Message, *, stopped: bool = True) -> tuple[int, ...]:
        body = self._body(message)
        return body + self._marker(STOP) if stopped else body

    def text_ids(self, text: str) -> tuple[int, ...]:
        return self._text(text)

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False) if ids else ""

    def extend(
        self, sampled: Sequence[int], messages: Sequence[Message], tools: Sequence[ToolSpec] = ()
    ) -> tuple[int, ...]:
        """Return the turn's closing, `messages`, and the next assistant header.

        Any sampled stop token closes the turn; a cut turn gets the format's own.
        """
        stopped_at = first_stop(sampled, self.stop_ids)
        if stopped_at is not None and stopped_at < len(sampled) - 1:
            raise CannotExtendError("tokens after a stop token")
        closing = self._closing() if stopped_at is None else self._newline
        return _concat(closing, *map(self._message, messages), self._header("assistant"))

    def parse(self, token_ids: Sequence[int], tools: Sequence[ToolSpec] = ()) -> Message:
        """Return the assistant message in the ids, up to the stop token.

        The inverse of `completion_ids`, except that calls are named `call_0`, `call_1`, …
        """
        message = message_of(self._sections(token_ids))
        if CALL[0] in self._control or not tools:
            return message
        content, calls = read_hermes_calls(message.content)
        return replace(message, content=content, tool_calls=calls)

    def _sections(self, ids: Sequence[int]) -> list[Section]:
        stop = first_stop(ids, self.stop_ids)
        end = len(ids) if stop is None else stop
        starts = [index for index, token_id in enumerate(ids[:end]) if token_id in self._markers]
        sections = [Section("", self.decode(ids[: starts[0] if starts else end]), 0, 0)]
        for start, after in pairwise([*starts, end]):
            text = self.decode(ids[start + 1 : after])
            sections.append(Section(self._markers[ids[start]], text, start, after))
        return sections if sections[0].text else sections[1:]

    def _prompt_parts(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> Iterator[tuple[int, ...]]:
        rest = messages
        if tools:
            system = messages[0].content if messages and messages[0].role == "system" else None
            rest = messages if system is None else messages[1:]
            signatures = tuple(tool.signature() for tool in tools)
            encode = partial(self._encode_tools, system or "", signatures)
            yield self._cache.get(("tools", system or "", signatures), encode)
        yield from map(self._message, rest)
        yield self._header("assistant")

    def _encode_tools(self, system: str, signatures: Sequence[str]) -> tuple[int, ...]:
        parts = tools_parts(system, signatures)
        encoded = (self._marker(each) if each in MARKERS else self._text(each) for each in parts)
        return _concat(self._header("system"), *encoded, self._closing())

    def _message(self, message: Message) -> tuple[int, ...]:
        key = ("message", message.content if message.role == "tool" else message)

        def encode() -> tuple[int, ...]:
            body = self._body(message)
            if message.role == "tool":
                body = _concat(self._marker(RESPONSE[0]), body, self._marker(RESPONSE[1]))
            return _concat(self._header(message.role), body, self._closing())

        return self._cache.get(key, encode)

    def _body(self, message: Message) -> tuple[int, ...]:
        key = ("body", message.content if message.role == "tool" else message)

        def encode() -> tuple[int, ...]:
            if message.role == "tool":
                return self._text(f"\n{message.content}\n")
            parts: list[tuple[int, ...]] = []
            if message.reasoning:
                thought = self._text(f"\n{message.reasoning}\n")
                parts += [self._marker(THINK[0]), thought, self._marker(THINK[1]), self._text("\n\n")]
            parts.append(self._text(message.content))
            for index, call in enumerate(message.tool_calls):
                if index or message.content:
                    parts.append(self._text("\n"))
                parts += [self._marker(CALL[0]), self._text(write_call(call)), self._marker(CALL[1])]
            return _concat(*parts)

        return self._cache.get(key, encode)

    def _header(self, role: str) -> tuple[int, ...]:
        return self._cache.get(("header", role), lambda: self._marker(START) + self._text(f"{role}\n"))

    def _closing(self) -> tuple[int, ...]:
        return self._marker(STOP) + self._newline

    @cached_property
    def _newline(self) -> tuple[int, ...]:
        return self._text("\n")

    def _marker(self, marker: str) -> tuple[int, ...]:
        return self._control.get(marker) or self._text(marker)

    def _text(self, text: str) -> tuple[int, ...]:
        if len(text) < LONG_CHARS:
            return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)
        # `encode` holds the GIL, a batch does not.
        (encoding,) = self._tokenizer.encode_batch([text], add_special_tokens=False)
        return tuple(encoding.ids)


def _concat(*parts: Iterable[int]) -> tuple[int, ...]:
    return tuple(chain.from_iterable(parts))


Result = TypeVar("Result")
LONGEST_TOKEN = 1_000
"""Assumed maximum length of a token in characters; known vocabularies have shorter ones."""
_LONG_TOKENS = 4_000
"""Ids that take about 10 ms to parse; more are parsed in a thread."""


async def run_rendering(
    work: Callable[[], Result],
    renderer: Renderer,
    messages: Sequence[Message],
    *,
    max_tokens: int | None,
    sampled: int = 0,
) -> Result:
    """Return `work()`, in a thread for much text; ContextOverflow if it certainly exceeds `max_tokens`."""
    # `isinstance` of a protocol takes 20 µs.
    chars = getattr(renderer, "chars_to_encode", count_chars)(messages)
    if chars >= LONG_CHARS and max_tokens is not None and chars > max_tokens * longest_token(renderer):
        raise ContextOverflow(f"{chars} characters are more than {max_tokens} tokens")
    with measure("rendering a prompt"):
        return await (run_parsing(work, tokens=sampled) if chars < LONG_CHARS else asyncio.to_thread(work))


async def run_parsing(work: Callable[[], Result], *, tokens: int) -> Result:
    return work() if tokens < _LONG_TOKENS else await asyncio.to_thread(work)


def longest_token(renderer: Renderer) -> int:
    return getattr(renderer, "longest_token", LONGEST_TOKEN)


def count_chars(messages: Sequence[Message], *, reasoning: bool = True) -> int:
    return sum(
        len(each.content)
        + (len(each.reasoning or "") if reasoning else 0)
        + sum(len(call.arguments) for call in each.tool_calls)
        for each in messages
    )
