"""Chat formats of model families, as an adapter of the `renderers` library."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, cached_property
from importlib import import_module
from itertools import count, pairwise
from types import SimpleNamespace
from typing import Any, Final, cast, overload

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Metaspace

from environments.policy.rendering.chatml import LONG_CHARS, THINK, CannotExtendError, first_stop
from environments.policy.rendering.hermes import read_json_call
from environments.policy.rendering.tools_in_prompt import write_calls
from environments.trajectory import Message
from tools.calls import CallStatus, ToolCall, ToolSpec
from tools.errors import ConfigError, PolicyError
from tools.extras import needs_extra
from tools.plain_text import utf8_text

_STATUSES: Final[Mapping[str, CallStatus]] = {
    "ok": "ok",
    "unknown_tool": "ok",
    "invalid_json": "invalid_json",
    "unclosed_block": "unclosed_block",
    "missing_name": "missing_name",
}
_OPENED: Final = re.compile("<(?:｜DSML｜)?(?:parameter|arg_key|arg_value)[ :=>]")
_CLOSED: Final = re.compile("</(?:｜DSML｜)?(?:parameter|arg_key|arg_value)[:>]")
_PYTHON: Final[Mapping[str, Any]] = {"True": True, "False": False, "None": None}


_BEGUN: Final = re.compile("<(?:｜DSML｜)?(?:parameter|arg_key|arg_value|function|invoke)[ :=>]")
_ENDED: Final = re.compile("</(?:｜DSML｜)?(?:parameter|arg_key|arg_value|function|invoke)[:>]")
_MOST_UNCLOSED: Final = 100


def has_many_unclosed(text: str) -> bool:
    """Whether a turn has so many unclosed tags that the library would hold the GIL for minutes."""
    opened = [each.start() for each in _BEGUN.finditer(text)]
    closed = [each.start() for each in _ENDED.finditer(text)]
    after = sum(start > closed[-1] for start in opened) if closed else len(opened)
    return max(after, len(opened) - len(closed)) > _MOST_UNCLOSED


def tool_call(found: Any, index: int, tools: Sequence[ToolSpec]) -> ToolCall:
    status: CallStatus = _STATUSES.get(str(found.status), "malformed")
    name = found.name or ""
    arguments: Any = found.arguments
    if status == "invalid_json" and isinstance(arguments, dict):
        properties = (tool.parameters.get("properties", {}) for tool in tools if tool.name == name)
        arguments, fixed = _from_python(arguments, next(properties, {}))  # pyright: ignore[reportUnknownArgumentType]
        status = "ok" if fixed else status
    if status == "ok" and not name:
        status = "missing_name"
    elif status == "ok" and len(_OPENED.findall(found.raw)) != len(_CLOSED.findall(found.raw)):
        status = "malformed"  # a value that is not closed, which the library drops silently
    return ToolCall(
        id=f"call_{index}",
        name=utf8_text(name),
        arguments=utf8_text(_text(found.raw, arguments)),
        status=status,
        span=found.token_span,
    )


def _text(raw: str, arguments: Any) -> str:
    if isinstance(arguments, str):
        return arguments
    if arguments is None:
        return raw
    written = read_json_call(raw).arguments
    for candidate in (written, raw[raw.find("{") : raw.rfind("}") + 1]):
        with suppress(ValueError, RecursionError):
            if json.loads(candidate) == arguments:
                return candidate
    return json.dumps(arguments, ensure_ascii=False)


def _from_python(arguments: Mapping[str, Any], properties: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return (arguments with Python's literals as JSON values, whether that repaired all)."""
    fixed: dict[str, Any] = {}
    odd = 0
    for key, value in arguments.items():
        fixed[key] = value
        if isinstance(value, str) and not _allows_text(properties.get(key, {})):
            fixed[key] = _PYTHON.get(value, value)
            odd += value not in _PYTHON
    return fixed, not odd


def _allows_text(schema: Mapping[str, Any]) -> bool:
    kinds = schema.get("type", ())
    branches = schema.get("anyOf") or schema.get("oneOf") or ()
    if not kinds and not branches:
        return True
    return "string" in ([kinds] if isinstance(kinds, str) else kinds) or any(map(_allows_text, branches))


AsText = Callable[[str], str]
_Named = dict[str, tuple[str, str]]
"""Ids of our calls, each with the id that the library gets and the function's name."""


def library_messages(messages: Sequence[Message], as_text: AsText) -> list[dict[str, Any]]:
    """Return a conversation for the library; calls that are not JSON objects become content.

    Calls are numbered through the conversation, since Kimi's format contains these ids.
    """
    named: _Named = {}
    numbers = count()
    given: list[dict[str, Any]] = []
    for message in messages:
        for call in message.tool_calls:
            named[call.id] = (f"functions.{call.name}:{next(numbers)}", call.name)
        given.append(_library_message(message, named, as_text))
    return given


def library_replies(
    messages: Sequence[Message], found: Sequence[Any], as_text: AsText
) -> list[dict[str, Any]]:
    names = iter([(call_id(call, index), call.name) for index, call in enumerate(found)])
    given: list[dict[str, Any]] = []
    for message in messages:
        answered = next(names, None) if message.role == "tool" else None
        named = {} if answered is None else {message.tool_call_id or "": answered}
        given.append(_library_message(message, named, as_text))
    return given


def call_id(found: Any, index: int) -> str:
    return found.id or f"functions.{found.name}:{index}"


def _library_message(message: Message, named: _Named, as_text: AsText) -> dict[str, Any]:
    if message.role == "tool":
        written_id, name = named.get(message.tool_call_id or "", (message.tool_call_id, None))
        texts = {"content": message.content, "tool_call_id": written_id or None, "name": name or None}
        return {"role": "tool", **{key: as_text(text) for key, text in texts.items() if text is not None}}
    calls = [call for call in message.tool_calls if is_object(call)]
    others = [
        f"{call.name}({call.arguments})" if call.name else call.arguments
        for call in message.tool_calls
        if call not in calls
    ]
    content = "\n".join(filter(None, [message.content, *others]))
    given: dict[str, Any] = {"role": message.role, "content": as_text(content)}
    if message.reasoning:
        given["reasoning_content"] = as_text(message.reasoning)
    if calls:
        given["tool_calls"] = [
            {
                "id": as_text(named[call.id][0]),
                "type": "function",
                "function": {"name": as_text(call.name), "arguments": as_text(call.arguments or "{}")},
            }
            for call in calls
        ]
    return given


def is_object(call: ToolCall) -> bool:
    if call.status != "ok":
        return False
    try:
        return isinstance(json.loads(call.arguments or "{}"), dict)
    except (ValueError, RecursionError):
        return False


_BREAK = "\ufdd0\ufdd1"
_ITSELF = "\ufdd0\ufdd2"


class MarkerBreaks:
    def __init__(self, markers: Iterable[str]) -> None:
        self._markers = frozenset(markers)
        lengths: dict[str, set[int]] = {}
        for marker in self._markers:
            lengths.setdefault(marker[:2], set()).add(len(marker))
        self._lengths = {start: sorted(each, reverse=True) for start, each in lengths.items()}
        starts = sorted(self._lengths, key=len, reverse=True)
        self._start = re.compile("|".join(map(re.escape, starts)) or r"(?!)")
        self._heads = {marker[:size] for marker in self._markers for size in range(1, len(marker))}
        self._tails = {marker[size:] for marker in self._markers for size in range(1, len(marker))}
        self._longest = max(map(len, self._markers), default=0)

    def insert_breaks(self, text: str) -> str:
        text = text.replace("\ufdd0", _ITSELF)
        found = list(self._find(text, overlapping=True))
        if found:
            cut = [0, *(start + 1 for start, _ in found), len(text)]
            text = _BREAK.join(text[a:b] for a, b in pairwise(cut))
        ends = range(1, min(self._longest, len(text)) + 1)
        if any(text[:size] in self._tails for size in ends):
            text = _BREAK + text
        if any(text[-size:] in self._heads for size in ends):
            text += _BREAK
        return text

    def pieces(self, text: str) -> Iterator[tuple[str, bool]]:
        """Yield (piece, whether it is a marker); breaks are removed."""
        end = 0
        for start, marker in self._find(text):
            yield _remove_breaks(text[end:start]), False
            yield marker, True
            end = start + len(marker)
        yield _remove_breaks(text[end:]), False

    def _find(self, text: str, *, overlapping: bool = False) -> Iterator[tuple[int, str]]:
        at = 0
        while (start := self._start.search(text, at)) is not None:
            at = start.start()
            lengths = self._lengths[start[0]]
            marker = next((text[at : at + n] for n in lengths if text[at : at + n] in self._markers), None)
            if marker is not None:
                yield at, marker
            at += 1 if marker is None or overlapping else len(marker)


def _remove_breaks(text: str) -> str:
    return text.replace(_BREAK, "").replace(_ITSELF, "\ufdd0")


_SIGNS = frozenset("<>[]|{}〈〉\uff5c")
_LOOKS_LIKE_MARKER = re.compile("<[^<>\\s]+>|\uff5c\\w+\uff5c")
_TEXT_MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
"""Formats search message text for these, even where they are not tokens."""


class FamilyTokenizer:
    """The interface of Hugging Face tokenizers that the library needs, over a private copy.

    Markers are added tokens that are special or contain markup; whitespace tokens are text.
    """

    def __init__(self, tokenizer: Tokenizer, *, name_or_path: str = "") -> None:
        self._tokenizer: Tokenizer = Tokenizer.from_str(tokenizer.to_str())
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        before = self._tokenizer.pre_tokenizer  # pyright: ignore[reportAttributeAccessIssue] - its stub has no getter
        if isinstance(before, Metaspace) and before.prepend_scheme == "first":
            # Pieces behind a marker are not the first of a text.
            before.prepend_scheme = "never"
            self._tokenizer.pre_tokenizer = before  # pyright: ignore[reportAttributeAccessIssue]
        self.name_or_path = name_or_path
        self.unk_token_id = None
        self.missing: list[str] | None = None
        """If a list: collects tokens that the tokenizer lacks, with id 0 as a stand-in."""
        added = self._tokenizer.get_added_tokens_decoder()
        self.markers = {
            token.content: token_id
            for token_id, token in added.items()
            if token.special or _SIGNS.intersection(token.content)
        }
        self._tokenizer.add_special_tokens(  # pyright: ignore[reportUnknownMemberType] - its stub says `list`
            [AddedToken(marker, special=True, normalized=False) for marker in self.markers]
        )
        self._tokenizer.encode_special_tokens = True
        self._drop_space = frozenset(token.content for token in added.values() if token.rstrip)
        self._marker_ids = frozenset(self.markers.values())
        self.in_encoded = MarkerBreaks(self.markers)
        self._in_messages = MarkerBreaks([*self.markers, *_TEXT_MARKERS])

    @property
    def eos_token_id(self) -> int | None:
        return self.markers.get("<|endoftext|>")

    def vocabulary_size(self) -> int:
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1

    def longest_token(self) -> int:
        return max(len(token.encode()) for token in self._tokenizer.get_vocab(with_added_tokens=False))

    def from_message(self, text: str) -> str:
        return self._in_messages.insert_breaks(text)

    def encode(self, text: str, **_: Any) -> list[int]:
        """Encode the library's text: its markers become control tokens, broken ones text."""
        ids: list[int] = []
        if self.missing is not None and _LOOKS_LIKE_MARKER.fullmatch(text) and text not in self.markers:
            self.missing.append(text)
            return [0]
        drops_space = False
        for each, is_marker in self.in_encoded.pieces(text):
            piece = each.lstrip() if drops_space and not is_marker else each
            drops_space = is_marker and each in self._drop_space
            if is_marker:
                ids.append(self.markers[piece])
            elif piece:
                ids += self._encode_text(piece)
        return ids

    def _encode_text(self, text: str) -> list[int]:
        if len(text) < LONG_CHARS:
            ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        else:
            (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
            ids = encoding.ids
        if self._marker_ids.isdisjoint(ids):
            return ids
        # Unigram vocabularies find a marker in text, too.
        parts = map(_remove_breaks, self.in_encoded.insert_breaks(text).split(_BREAK))
        encoded = self._tokenizer.encode_batch_fast(list(filter(None, parts)), add_special_tokens=False)
        return [each for encoding in encoded for each in encoding.ids]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False, **others: Any) -> str:
        """Decode ids; ValueError for token offsets, which the library would compute in quadratic time."""
        if others:
            raise ValueError("offsets of tokens are not supported")
        return self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def convert_tokens_to_ids(self, token: str) -> int | None:
        token_id = self._tokenizer.token_to_id(token)
        if token_id is None and self.missing is not None:
            self.missing.append(token)
            return 0
        return token_id


def byte_tokenizer(markers: Sequence[str]) -> Tokenizer:
    vocabulary = {character: index for index, character in enumerate(sorted(ByteLevel.alphabet()))}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)  # pyright: ignore[reportAttributeAccessIssue] - its stub has no setter
    tokenizer.decoder = ByteLevelDecoder()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.add_special_tokens([AddedToken(marker, special=True, normalized=False) for marker in markers])  # pyright: ignore[reportUnknownMemberType]
    return tokenizer


def map_text(value: Any, as_text: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return as_text(value)
    if isinstance(value, Mapping):
        held = cast("Mapping[Any, Any]", value)
        return {map_text(key, as_text): map_text(held[key], as_text) for key in held}
    if isinstance(value, list | tuple):
        return [map_text(each, as_text) for each in cast("Sequence[Any]", value)]
    return value


_KEPT_LISTS = 64
_BY_TEMPLATE = frozenset({"deepseek-v4", "laguna-m.1", "laguna-xs.2"})
"""The library's extension refuses several results or loses ids in these."""

_LONGEST_CHARACTER = 8
_SHORT = 1_000


class _IdView(Sequence[int]):
    """A view without copies, since the library slices every prefix."""

    def __init__(self, ids: Sequence[int], at: range) -> None:
        self._ids, self._at = ids, at

    def __len__(self) -> int:
        return len(self._at)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> "_IdView": ...
    def __getitem__(self, index: int | slice) -> "int | _IdView":
        if isinstance(index, slice):
            return _IdView(self._ids, self._at[index])
        return self._ids[self._at[index]]


class _PrefixDecoder:
    """Decodes prefixes of the last ids in linear time, as text of equal length.

    The library needs only the lengths. A character of several ids ends with its last id.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._last: list[int] = []
        self._ends: list[int] = []

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        if len(ids) < len(self._last) and ids[-1] == self._last[len(ids) - 1]:
            self._ends = self._ends or list(self._find_ends())
            return " " * self._ends[len(ids) - 1]
        self._last, self._ends = list(ids), []
        return self._decode(self._last)

    def _find_ends(self) -> Iterator[int]:
        start = before = 0
        for index in range(len(self._last)):
            text = self._decode(self._last[start : index + 1])
            yield before + len(text.rstrip("\ufffd"))
            if not text.endswith("\ufffd") or index - start > _LONGEST_CHARACTER:
                start, before = index + 1, before + len(text)


class TokenizerRenderer:
    def __init__(self, tokenizer: Tokenizer, *, model_name: str = "") -> None:
        self._tokenizer = FamilyTokenizer(tokenizer, name_or_path=model_name)
        self.vocabulary_size = self._tokenizer.vocabulary_size()

    @property
    def markers(self) -> Mapping[str, int]:
        return self._tokenizer.markers

    @cached_property
    def longest_token(self) -> int:
        return self._tokenizer.longest_token()

    def text_ids(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(self._tokenizer.from_message(text)))

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids)


class FamilyRenderer(TokenizerRenderer):
    """Renders one family's format; reasoning stays, so that rows only grow.

    In whole prompts (the first, and after a fork) the template decides about earlier reasoning.
    """

    def __init__(self, family: str, tokenizer: Tokenizer, *, model_name: str = "") -> None:
        super().__init__(tokenizer, model_name=model_name)
        self.name = family
        self._known_tools: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        create, library_config = _library_parts(family)
        try:
            self._library = create(self._tokenizer, library_config)
        except Exception as error:
            lacking = ", ".join(_missing_markers(family, self._tokenizer))
            reason = f"the tokenizer lacks {lacking}" if lacking else " ".join(str(error).split())[:200]
            raise ConfigError(
                f"the chat format {family} cannot be used with this tokenizer: {reason}; "
                f"give --env.tokenizer_name of a {family} model, or another --openai.family"
            ) from error
        question = [{"role": "user", "content": "?"}]
        self._opening: list[int] = self._library.render_ids(question, add_generation_prompt=True)
        self.stop_ids: tuple[int, ...] = tuple(dict.fromkeys(self._library.get_stop_token_ids()))

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        described = self._describe(tools)
        problem: Exception | None = None
        for each in (messages, write_calls(messages)):
            given = library_messages(each, self._tokenizer.from_message)
            try:
                return tuple(self._library.render_ids(given, tools=described, add_generation_prompt=True))
            except (ValueError, TypeError, NotImplementedError) as error:
                problem = error
        raise PolicyError(f"the chat format {self.name} cannot write this: {problem}") from problem

    def extend(
        self, sampled: Sequence[int], messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> tuple[int, ...]:
        # The library gets a short opening in place of the row, so that the cost does not grow.
        stopped_at = first_stop(sampled, self.stop_ids)
        if stopped_at is not None and stopped_at < len(sampled) - 1:
            raise CannotExtendError("tokens after a stop token")
        read = self._read(sampled, tools)
        if read.reasoning_complete is False and stopped_at is not None:
            raise CannotExtendError("stopped inside reasoning")
        given = library_replies(messages, read.tool_calls, self._tokenizer.from_message)
        if self.name in _BY_TEMPLATE:
            return self._after_template(given, read, closed=stopped_at is not None)
        before = [*self._opening, *sampled]
        bridged = self._library.bridge_to_next_turn(
            self._opening, list(sampled), given, tools=self._describe(tools)
        )
        if bridged is None:
            raise CannotExtendError("no way to go on after this turn")
        ids: list[int] = bridged.token_ids
        if ids[: len(before)] != before:
            raise CannotExtendError("the format drops what was sampled")
        return tuple(ids[len(before) :])

    def parse(self, token_ids: Sequence[int], tools: Sequence[ToolSpec]) -> Message:
        return _message(self._read(token_ids, tools), tools)

    def parse_text(self, text: str, tools: Sequence[ToolSpec]) -> Message:
        ids = self._tokenizer.encode(text)
        return _message(self._read_by_library(ids, tools, prompt_ids=None), tools)

    def _describe(self, tools: Sequence[ToolSpec]) -> list[dict[str, Any]] | None:
        key = tuple(tool.signature() for tool in tools)
        if key not in self._known_tools:
            if len(self._known_tools) >= _KEPT_LISTS:
                self._known_tools.clear()
            self._known_tools[key] = [
                map_text(tool.to_openai(), self._tokenizer.from_message) for tool in tools
            ]
        return self._known_tools[key] or None

    def _read(self, token_ids: Sequence[int], tools: Sequence[ToolSpec]) -> Any:
        read = self._read_by_library(token_ids, tools, prompt_ids=self._opening)
        marker = self.markers.get(self._think[1])
        spans = [call.token_span for call in read.tool_calls if call.token_span is not None]
        if not spans or marker is None:
            return read
        # The library ends reasoning at a call. If it is closed later, the call was only a thought; a marker
        # inside a call is content.
        closings = (index for index, token_id in enumerate(token_ids) if token_id == marker)
        end = next((i for i in closings if not any(start < i < after for start, after in spans)), None)
        if end is None or spans[0][0] >= end:
            return read
        rest = self._read_by_library(token_ids[end:], tools, prompt_ids=self._opening)
        thought = self.decode(token_ids[:end]).strip()
        calls = [
            replace(each, token_span=each.token_span and tuple(at + end for at in each.token_span))
            for each in rest.tool_calls
        ]
        thought = thought.removeprefix(self._think[0]).strip()
        return replace(rest, reasoning_content=thought, tool_calls=calls)

    def _read_by_library(
        self, token_ids: Sequence[int], tools: Sequence[ToolSpec], *, prompt_ids: list[int] | None
    ) -> Any:
        if len(token_ids) > _SHORT and has_many_unclosed(text := self.decode(token_ids)):
            return SimpleNamespace(
                content=text, reasoning_content=None, tool_calls=[], reasoning_complete=True
            )
        if self.name == "deepseek-v4":
            return self._read_dsml(token_ids)
        described = [tool.to_openai() for tool in tools] or None
        return self._library.parse_response(list(token_ids), tools=described, prompt_ids=prompt_ids)

    def _read_dsml(self, token_ids: Sequence[int]) -> Any:
        think, think_end = (self.markers[text] for text in self._think)
        return import_module("renderers.parsing").parse_deepseek_v4(
            _PrefixDecoder(self.decode),
            _IdView(token_ids, range(len(token_ids))),
            stop_ids=set(self.stop_ids),
            thinking_enabled=self._opening[-1:] == [think],
            think_end_id=think_end,
            think_start_id=think,
        )

    @cached_property
    def _think(self) -> tuple[str, str]:
        return ("<think:opensource>", "</think:opensource>") if self.name == "hy3" else THINK

    def _after_template(self, given: list[dict[str, Any]], read: Any, *, closed: bool) -> tuple[int, ...]:
        answered: dict[str, Any] = {"role": "assistant", "content": "."}
        if read.tool_calls:
            answered["tool_calls"] = [
                {"id": call_id(found, index), "function": {"name": found.name or "?", "arguments": "{}"}}
                for index, found in enumerate(read.tool_calls)
            ]
        question = {"role": "user", "content": "?"}
        turn = self._library.render_ids([question, answered])
        grown: list[int] = self._library.render_ids([question, answered, *given], add_generation_prompt=True)
        stops = set(self.stop_ids)
        close = max((index for index, token_id in enumerate(turn) if token_id in stops), default=None)
        if close is None or grown[: close + 1] != turn[: close + 1]:
            raise CannotExtendError("no way to go on after this turn")
        start = close + 1 if closed else close
        if not closed and read.reasoning_complete is False:
            raise CannotExtendError("cut inside reasoning")
        return tuple(grown[start:])


def _message(read: Any, tools: Sequence[ToolSpec]) -> Message:
    calls = tuple(tool_call(found, index, tools) for index, found in enumerate(read.tool_calls))
    return Message(
        role="assistant",
        content=read.content.rstrip("\n") if calls else read.content,
        reasoning=read.reasoning_content or None,
        tool_calls=calls,
    )


@cache
def text_reader(family: str) -> FamilyRenderer:
    markers = _missing_markers(family, FamilyTokenizer(byte_tokenizer(())))
    return FamilyRenderer(family, byte_tokenizer(markers))


def _missing_markers(family: str, tokenizer: FamilyTokenizer) -> list[str]:
    create, config = _library_parts(family)
    tokenizer.missing = []
    with suppress(Exception):
        create(tokenizer, config)
    lacking, tokenizer.missing = list(dict.fromkeys(tokenizer.missing)), None
    return lacking


def _library_parts(family: str) -> tuple[Any, Any]:
    with needs_extra("families", f"the chat format {family}"):
        create: Any = import_module("renderers").create_renderer
        config_from_name: Any = import_module("renderers.configs").config_from_name
    # A trained row may only grow, so reasoning stays.
    return create, type(config_from_name(family))(thinking_retention="all")
