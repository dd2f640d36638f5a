"""Turns messages into token ids and back: ChatML with tools, segment by segment.

Each message is encoded on its own, in fixed pieces (header, body, closing), and a prompt is their
concatenation. So what was sampled for a message is exactly what later prompts hold for it, and a prompt costs
only its new messages. Text never becomes a control token, whoever wrote it; only the format's own pieces do.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache, cached_property
from itertools import chain, pairwise
from pathlib import Path
from typing import Final

from tokenizers import AddedToken, Tokenizer

from environments.policy.rendering.chatml_turn import CALL, THINK, Section, message_of, write_call
from environments.policy.rendering.renderer import CannotExtendError
from environments.policy.rendering.token_cache import TokenCache
from environments.policy.rendering.tokenizer_files import EMBEDDED, load_tokenizer, tokenizer_in
from environments.policy.rendering.tokenizer_files import (
    EMBEDDED_TOKENIZER_DIR as EMBEDDED_TOKENIZER_DIR,
)
from environments.trajectory import Message
from tools.calls import ToolSpec

START: Final = "<|im_start|>"
STOP: Final = "<|im_end|>"
STOPS: Final = (STOP, "<|endoftext|>")
RESPONSE: Final = ("<tool_response>", "</tool_response>")
TOOLS: Final = ("<tools>", "</tools>")
MARKERS: Final = ("<|endoftext|>", START, STOP, *CALL, *RESPONSE, *TOOLS, *THINK)

LONG_CHARS = 10_000
"""Characters that take some 10 ms to encode: more are encoded where the event loop does not wait for them."""
_CACHED_TOKENS = 1_000_000


class ChatMLRenderer:
    """Renders conversations with the ids of one tokenizer.

    The format is ours for every tokenizer; markers that a tokenizer has no token for become ordinary text.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Take a private copy of `tokenizer`, so that nobody else's settings change its ids."""
        self._tokenizer: Tokenizer = Tokenizer.from_str(tokenizer.to_str())
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        added = self._tokenizer.get_added_tokens_decoder()
        # A model's own `<tool_call>` may be an added token that is not special; here all of them are control.
        self._tokenizer.add_special_tokens(  # pyright: ignore[reportUnknownMemberType] - its stub says `list`
            [AddedToken(token.content, special=True, normalized=False) for token in added.values()]
        )
        self._tokenizer.encode_special_tokens = True
        self._control = {token.content: (token_id,) for token_id, token in added.items()}
        self._markers = {ids[0]: marker for marker, ids in self._control.items() if marker in MARKERS}
        self._cache = TokenCache(_CACHED_TOKENS)
        self.stop_ids = tuple(self._control[marker][0] for marker in STOPS if marker in self._control)
        """Those of `<|im_end|>` and `<|endoftext|>` that are tokens of this tokenizer."""
        self.vocabulary_size = max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        """One more than the largest id of the tokenizer."""

    @classmethod
    @cache
    def embedded(cls) -> "ChatMLRenderer":
        """The renderer of the embedded tokenizer, one for all."""
        return cls.from_folder(EMBEDDED_TOKENIZER_DIR)

    @classmethod
    def from_folder(cls, folder: Path) -> "ChatMLRenderer":
        """The renderer of a folder with a `tokenizer.json`.

        Raises:
            ConfigError: the folder has none, or it cannot be read.
        """
        return cls(tokenizer_in(folder))

    @classmethod
    def load(cls, name: str) -> "ChatMLRenderer":
        """The renderer of `embedded`, of a local folder, or of a Hugging Face name.

        Raises:
            ConfigError: there is no such tokenizer, or it has no `tokenizer.json`.
        """
        return cls.embedded() if name == EMBEDDED else cls(load_tokenizer(name))

    @property
    def name(self) -> str:
        """`chatml`."""
        return "chatml"

    @property
    def missing_markers(self) -> tuple[str, ...]:
        """What ids need and this tokenizer has no token for; text alone does without."""
        return tuple(marker for marker in (START, STOP, *CALL) if marker not in self._control)

    @cached_property
    def longest_token(self) -> int:
        """Characters of the longest token that text can become, at most."""
        return max(len(token.encode()) for token in self._tokenizer.get_vocab(with_added_tokens=False))

    def chars_to_encode(self, messages: Sequence[Message]) -> int:
        """Characters of the messages that were not rendered lately."""
        return sum(
            len(each.content)
            + len(each.reasoning or "")
            + sum(len(call.arguments) for call in each.tool_calls)
            for each in messages
            if ("message", each) not in self._cache and ("body", each) not in self._cache
        )

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """The whole conversation up to where the next assistant message begins.

        For any assistant message sampled after a prompt, the next prompt starts with that prompt plus
        `completion_ids(message)`.
        """
        return _joined(*self._prompt_parts(messages, tools))

    def prompt_tokens(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> int:
        """How many `prompt_ids` gives."""
        return sum(map(len, self._prompt_parts(messages, tools)))

    def completion_ids(self, message: Message, *, stopped: bool = True) -> tuple[int, ...]:
        """What a model samples for an assistant message: its body and, if `stopped`, the stop token."""
        body = self._body(message)
        return body + self._marker(STOP) if stopped else body

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, control tokens included."""
        return self._tokenizer.decode(ids, skip_special_tokens=False) if ids else ""

    def extend(
        self, sampled: Sequence[int], messages: Sequence[Message], tools: Sequence[ToolSpec] = ()
    ) -> tuple[int, ...]:
        """What follows a sampled turn: what closes it, `messages`, and the next assistant's header.

        A prompt of the grown conversation holds the same after the turn. A stop token that was sampled closes
        the turn, whichever it is; for a turn that was cut, the format's own one is added.

        Raises:
            CannotExtendError: the turn goes on after its stop token, and parsing drops that.
        """
        stops = set(self.stop_ids)
        stopped_at = next((index for index, token_id in enumerate(sampled) if token_id in stops), None)
        if stopped_at is not None and stopped_at < len(sampled) - 1:
            raise CannotExtendError("tokens after a stop token")
        closing = self._closing() if stopped_at is None else self._newline
        return _joined(closing, *map(self._message, messages), self._header("assistant"))

    def parse(self, token_ids: Sequence[int], tools: Sequence[ToolSpec] = ()) -> Message:
        """The assistant message that ids hold, up to the stop token if there is one.

        The reverse of `completion_ids` for whole messages (but call ids are `call_0`, `call_1`, …, as they
        are not in the tokens). A block that is not closed, or that holds no call, is a call with a status
        that says so; what stands in the reasoning is no call.
        Works with tokenizers that have the markers as control tokens.
        """
        return message_of(self._sections(token_ids))

    def _sections(self, ids: Sequence[int]) -> list[Section]:
        """The text up to the stop token, cut where a marker begins; the first marker may be empty."""
        stops = set(self.stop_ids)
        marked = [index for index, token_id in enumerate(ids) if token_id in self._markers]
        end = next((index for index in marked if ids[index] in stops), len(ids))
        starts = [index for index in marked if index < end]
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
            yield self._tools_block(system or "", tools)
        yield from map(self._message, rest)
        yield self._header("assistant")

    def _tools_block(self, system: str, tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """The system message that lists the tools."""
        signatures = tuple(tool.signature() for tool in tools)
        key = ("tools", system, signatures)
        if (known := self._cache.get(key)) is not None:
            return known
        listed = "\n".join(signatures)
        opening = f"{system}\n\n" if system else ""
        ids = _joined(
            self._header("system"),
            self._text(opening + "# Tools\n\nYou may call these functions. Their signatures:\n"),
            self._marker(TOOLS[0]),
            self._text(f"\n{listed}\n"),
            self._marker(TOOLS[1]),
            self._text(
                "\n\nFor each call, write a JSON object with the name and the arguments "
                "between tool_call tags:\n"
            ),
            self._marker(CALL[0]),
            self._text('\n{"name": <name>, "arguments": <arguments>}\n'),
            self._marker(CALL[1]),
            self._closing(),
        )
        return self._cache.put(key, ids)

    def _message(self, message: Message) -> tuple[int, ...]:
        key = ("message", message)
        if (known := self._cache.get(key)) is not None:
            return known
        body = self._body(message)
        if message.role == "tool":
            body = _joined(self._marker(RESPONSE[0]), body, self._marker(RESPONSE[1]))
        return self._cache.put(key, _joined(self._header(message.role), body, self._closing()))

    def _body(self, message: Message) -> tuple[int, ...]:
        key = ("body", message)
        if (known := self._cache.get(key)) is not None:
            return known
        if message.role == "tool":
            return self._cache.put(key, self._text(f"\n{message.content}\n"))
        parts: list[tuple[int, ...]] = []
        if message.reasoning:
            parts += [self._marker(THINK[0]), self._text(f"\n{message.reasoning}\n"), self._marker(THINK[1])]
            parts.append(self._text("\n\n"))
        parts.append(self._text(message.content))
        for index, call in enumerate(message.tool_calls):
            if index or message.content:
                parts.append(self._text("\n"))
            parts += [self._marker(CALL[0]), self._text(write_call(call)), self._marker(CALL[1])]
        return self._cache.put(key, _joined(*parts))

    def _header(self, role: str) -> tuple[int, ...]:
        key = ("header", role)
        if (known := self._cache.get(key)) is not None:
            return known
        return self._cache.put(key, self._marker(START) + self._text(f"{role}\n"))

    def _closing(self) -> tuple[int, ...]:
        return self._marker(STOP) + self._newline

    @cached_property
    def _newline(self) -> tuple[int, ...]:
        return self._text("\n")

    def _marker(self, marker: str) -> tuple[int, ...]:
        return self._control.get(marker) or self._text(marker)

    def _text(self, text: str) -> tuple[int, ...]:
        """Encode text that holds no control tokens, whatever it says."""
        if len(text) < LONG_CHARS:
            return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)
        # `encode` holds the interpreter until it is done, a batch does not.
        (encoding,) = self._tokenizer.encode_batch([text], add_special_tokens=False)
        return tuple(encoding.ids)


def _joined(*parts: Iterable[int]) -> tuple[int, ...]:
    return tuple(chain.from_iterable(parts))
