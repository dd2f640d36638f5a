"""A tokenizer as the `renderers` library asks for it: its markers are tokens, those in our text never are."""

import re
from collections.abc import Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from environments.policy.rendering.chatml import LONG_CHARS
from environments.policy.rendering.marker_breaks import MarkerBreaks

_SIGNS = frozenset("<>[]|{}〈〉\uff5c")
_LOOKS_LIKE_MARKER = re.compile("<[^<>\\s]+>|\uff5c\\w+\uff5c")
_TEXT_MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
"""Formats look for these in the text of messages, also where they are no tokens."""


class FamilyTokenizer:
    """The part of Hugging Face's interface that the library uses, over a private copy of a tokenizer.

    A marker is every added token that is special or holds a sign of markup. What is only white space is text:
    some tokenizers have such tokens.
    """

    def __init__(self, tokenizer: Tokenizer, *, name_or_path: str = "") -> None:
        self._tokenizer: Tokenizer = Tokenizer.from_str(tokenizer.to_str())
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.name_or_path = name_or_path
        """The model's name: some formats differ by it."""
        self.unk_token_id = None
        self.missing: list[str] | None = None
        """Once it is a list: tokens that were asked for and that the tokenizer lacks; another stands in."""
        added = self._tokenizer.get_added_tokens_decoder()
        self.markers = {
            token.content: token_id
            for token_id, token in added.items()
            if token.special or _SIGNS.intersection(token.content)
        }
        """Control tokens of this tokenizer, by their text."""
        self._tokenizer.add_special_tokens(  # pyright: ignore[reportUnknownMemberType] - its stub says `list`
            [AddedToken(marker, special=True, normalized=False) for marker in self.markers]
        )
        self._tokenizer.encode_special_tokens = True
        self._in_encoded = MarkerBreaks(self.markers)
        self._in_messages = MarkerBreaks([*self.markers, *_TEXT_MARKERS])

    @property
    def eos_token_id(self) -> int | None:
        """The end of text, for formats that stop there, too."""
        return self.markers.get("<|endoftext|>")

    def vocabulary_size(self) -> int:
        """One more than the largest id."""
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1

    def longest_token(self) -> int:
        """Characters of the longest token that text can become, at most."""
        return max(len(token.encode()) for token in self._tokenizer.get_vocab(with_added_tokens=False))

    def from_message(self, text: str) -> str:
        """Text of a message as it has to be given to the library."""
        return self._in_messages.broken(text)

    def encode(self, text: str, **_: Any) -> list[int]:
        """Ids of what the library wrote: its own markers are tokens, those from messages are text."""
        ids: list[int] = []
        if self.missing is not None and _LOOKS_LIKE_MARKER.fullmatch(text) and text not in self.markers:
            self.missing.append(text)
            return [0]
        for piece, is_marker in self._in_encoded.pieces(text):
            if is_marker:
                ids.append(self.markers[piece])
            elif len(piece) < LONG_CHARS:
                ids += self._tokenizer.encode(piece, add_special_tokens=False).ids
            else:  # `encode` holds the interpreter until it is done, a batch does not
                (encoding,) = self._tokenizer.encode_batch_fast([piece], add_special_tokens=False)
                ids += encoding.ids
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False, **others: Any) -> str:
        """The text of ids, control tokens included unless they are to be skipped.

        Raises:
            ValueError: the library asks token by token, in quadratic time, where in the text each one stands.
        """
        if others:
            raise ValueError("where tokens stand in a text is not told")
        return self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def convert_tokens_to_ids(self, token: str) -> int | None:
        """The id of one token; `None` for one that the tokenizer lacks."""
        token_id = self._tokenizer.token_to_id(token)
        if token_id is None and self.missing is not None:
            self.missing.append(token)
            return 0
        return token_id


def byte_tokenizer(markers: Sequence[str]) -> Tokenizer:
    """A tokenizer of 256 bytes and `markers`."""
    vocabulary = {character: index for index, character in enumerate(sorted(ByteLevel.alphabet()))}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)  # pyright: ignore[reportAttributeAccessIssue] - its stub has no setter
    tokenizer.decoder = ByteLevelDecoder()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.add_special_tokens([AddedToken(marker, special=True, normalized=False) for marker in markers])  # pyright: ignore[reportUnknownMemberType]
    return tokenizer
